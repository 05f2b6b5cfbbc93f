"""Experiments with a copy of the model, in a copy of the process."""

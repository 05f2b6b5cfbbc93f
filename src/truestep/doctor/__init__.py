"""The doctor: what is installed on this machine, and what of it does not fit."""

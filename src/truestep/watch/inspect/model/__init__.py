"""Models, their parameters and states."""

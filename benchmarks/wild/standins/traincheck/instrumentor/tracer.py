"""A switch that the scripts set."""

DISABLE_WRAPPER = False

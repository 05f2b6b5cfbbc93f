"""Rules about what goes into a loss."""

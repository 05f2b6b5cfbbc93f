"""Rules about where a step's time goes."""

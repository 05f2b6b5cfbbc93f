"""Rules about what a step's time goes to."""

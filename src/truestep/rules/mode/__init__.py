"""Rules about training and evaluation."""

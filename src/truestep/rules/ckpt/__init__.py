"""Rules about what is saved and loaded."""

"""Rules about the machine and what is installed on it."""

"""Rules about what goes wrong slowly, in long runs."""

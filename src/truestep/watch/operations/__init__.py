"""In the script's process: every operation of a few steps, with its caller."""

"""In the script's process: what is observed of torch and Python, a file for each family."""

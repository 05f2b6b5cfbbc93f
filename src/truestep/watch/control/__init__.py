"""In the script's process: what an experiment changes on purpose."""

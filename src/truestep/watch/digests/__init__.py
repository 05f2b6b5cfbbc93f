"""In the script's process: digests of what goes into each step, and of what a script keeps."""

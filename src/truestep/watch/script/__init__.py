"""In the script's process: becoming the script, where it stands, and the tape that all observers write to."""

"""What runs in the script's process."""

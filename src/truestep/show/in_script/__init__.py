"""What runs in the script's own process."""

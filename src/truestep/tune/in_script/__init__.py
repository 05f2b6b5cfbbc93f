"""In the script's process: taking turns, profiling."""

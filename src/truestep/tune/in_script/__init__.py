"""In the script's process: taking turns, resizing batches, raising the rate, profiling."""

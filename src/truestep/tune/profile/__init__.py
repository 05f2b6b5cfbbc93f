"""In our process: where the time and memory of a step go."""

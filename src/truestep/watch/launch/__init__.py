"""In our process: starting a script under observation, in a folder of its own."""

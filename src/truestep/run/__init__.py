"""The library: a loop that resumes exactly, on any number of processes. It imports nothing of the tool."""

"""In our process: settings tried against the script, measured, and kept where they pay."""

"""The knobs, one file each: `KNOB` says what it is, `apply(value, tape)` turns it in the script's process."""

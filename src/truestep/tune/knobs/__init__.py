"""The knobs, by theme: `KNOBS` says what they are, and which function turns each in the script's process."""

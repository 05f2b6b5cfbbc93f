"""Tuning: speed settings turned one by one in somebody's script, measured, and kept where they pay.

Owns what is tried, how it is measured and what is kept. Running the script is `watch`'s. Exports nothing: the
script's process imports this package for a knob alone.
"""

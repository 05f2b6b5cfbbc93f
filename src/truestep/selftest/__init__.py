"""The self-test: what truestep promises, tried on a device that its developers may not have.

Owns the trials and the table. `python -m truestep.selftest --device cuda` runs them; each starts the commands
as a user does, on a small script that is written into a temporary folder.
"""

"""Evidence: what is seen in a script's process, written there, and read back in ours.

Owns the types that both sides share, and their one form in files. Judges nothing.
"""

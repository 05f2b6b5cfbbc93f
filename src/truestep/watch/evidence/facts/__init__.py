"""Facts: what can be seen of a training script, one type for each kind of moment.

Owns their fields. Inspectors make them in the script's process, and rules read them in ours.
"""

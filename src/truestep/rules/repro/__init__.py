"""Rules about whether a run can be repeated."""

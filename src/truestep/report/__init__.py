"""Reports: a run's record made visible, as a page, live, or in the files of other tools.

Reads records and writes none. What is in them is up to those who train, check, verify and tune.
"""

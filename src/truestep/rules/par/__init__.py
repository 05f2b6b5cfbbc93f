"""Rules about parameters, and whether they are trained."""

"""Rules about whether a run is reproducible."""

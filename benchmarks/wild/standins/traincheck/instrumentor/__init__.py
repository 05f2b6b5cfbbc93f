"""What the scripts set for TrainCheck."""

from traincheck.instrumentor import tracer

__all__ = ["META_VARS", "meta_vars", "tracer"]
META_VARS = meta_vars = {}

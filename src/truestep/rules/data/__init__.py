"""Rules about batches and the order of samples."""

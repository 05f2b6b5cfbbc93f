"""A stand-in for TrainCheck's package: its published scripts annotate stages, which others ignore."""


def annotate_stage(name):
    """Do nothing."""

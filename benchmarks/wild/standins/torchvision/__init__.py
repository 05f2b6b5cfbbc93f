"""A stand-in for torchvision: small synthetic data, the transforms and models that the wild scripts use."""

from torchvision import datasets, models, transforms, utils

__version__ = "0.0.standin"
__all__ = ["datasets", "models", "transforms", "utils"]

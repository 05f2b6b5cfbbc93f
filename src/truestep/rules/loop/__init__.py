"""Rules about the order of what is done with gradients and learning rates."""

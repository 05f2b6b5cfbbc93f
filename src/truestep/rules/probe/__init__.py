"""Rules about what values and gradients in a model look like."""

"""Small functions that explain plain torch tensors."""

"""What loaders hand out, and what models are fed."""

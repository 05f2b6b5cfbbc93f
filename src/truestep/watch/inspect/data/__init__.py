"""What loaders return, and what models are given."""

"""Losses, gradients and updates."""

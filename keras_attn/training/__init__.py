"""Losses, metrics and the training loop of the text-to-text models."""

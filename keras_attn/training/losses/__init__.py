"""Losses, each with the layers or trainers that belong to it."""

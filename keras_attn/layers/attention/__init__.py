"""Layers that attend: scores, probabilities and a weighted sum."""

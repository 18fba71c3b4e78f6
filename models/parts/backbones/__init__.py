"""Convolutional networks that give features to other models."""

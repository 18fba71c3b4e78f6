"""Convolutional networks that provide features for other models."""

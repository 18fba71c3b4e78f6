"""Normalization of activations and of weights."""

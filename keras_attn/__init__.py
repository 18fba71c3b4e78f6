"""Attention layers, and the models that grew out of them, for Keras 3."""

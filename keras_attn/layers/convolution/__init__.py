"""Convolutions, pooling, and resizing of maps."""

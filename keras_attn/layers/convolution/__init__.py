"""Convolutions, pooling, and maps brought to another size."""

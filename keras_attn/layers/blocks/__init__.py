"""Transformer blocks, and the small layers that they consist of."""

"""Blocks of Transformers, and the small layers that they consist of."""

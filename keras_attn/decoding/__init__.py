"""Decoding: strategies and the one loop that runs them."""

from keras_attn.decoding.pair import IncrementalPair

__all__ = ["IncrementalPair"]

"""Decoding: strategies and the one loop that runs them."""

from keras_attn.decoding.generate import Generated, generate
from keras_attn.decoding.pair import IncrementalPair
from keras_attn.decoding.state import next_state
from keras_attn.decoding.strategies import Beam, Greedy, Sample

__all__ = [
    "Beam",
    "Generated",
    "Greedy",
    "IncrementalPair",
    "Sample",
    "generate",
    "next_state",
]

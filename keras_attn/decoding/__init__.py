"""Decoding: the strategies, and the one loop that runs them for every model."""

from keras_attn.decoding.generate import Generated, generate
from keras_attn.decoding.loop import next_state
from keras_attn.decoding.pair import IncrementalPair
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

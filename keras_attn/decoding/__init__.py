"""Decoding: the strategies, and the one loop that runs them for every model."""

from keras_attn.decoding.continuous import Completion, generate_all
from keras_attn.decoding.generate import Generated, generate
from keras_attn.decoding.loop import next_state
from keras_attn.decoding.pair import IncrementalPair
from keras_attn.decoding.speculation import DraftModel, PromptLookup, Speculated
from keras_attn.decoding.strategies import Beam, Greedy, Sample
from keras_attn.decoding.walking import Candidate, Walked, walk, walk_candidates

__all__ = [
    "Beam",
    "Candidate",
    "Completion",
    "DraftModel",
    "Generated",
    "Greedy",
    "IncrementalPair",
    "PromptLookup",
    "Sample",
    "Speculated",
    "Walked",
    "generate",
    "generate_all",
    "next_state",
    "walk",
    "walk_candidates",
]

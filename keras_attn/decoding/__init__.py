"""Decoding: the strategies, and the one loop that runs them for every model."""

from keras_attn.decoding.continuous import Completion, generate_all
from keras_attn.decoding.generate import Generated, generate
from keras_attn.decoding.loop import next_state
from keras_attn.decoding.pair import IncrementalPair
from keras_attn.decoding.rescoring import (
    ScoredText,
    language_model_scorer,
    log_likelihood,
    rescore,
)
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
    "ScoredText",
    "Speculated",
    "Walked",
    "generate",
    "generate_all",
    "language_model_scorer",
    "log_likelihood",
    "next_state",
    "rescore",
    "walk",
    "walk_candidates",
]


def __dir__():
    return __all__

"""Tokenizers, tf.data pipelines and data sets."""

from keras_attn.data.base_tokenizer import Tokenizer
from keras_attn.data.dates import make_dates, split_dates
from keras_attn.data.parallel import load_multi30k, parallel_dataset, read_parallel
from keras_attn.data.tokenizers import (
    CharacterTokenizer,
    SubwordTokenizer,
    load_tokenizer,
)

__all__ = [
    "CharacterTokenizer",
    "SubwordTokenizer",
    "Tokenizer",
    "load_multi30k",
    "load_tokenizer",
    "make_dates",
    "parallel_dataset",
    "read_parallel",
    "split_dates",
]

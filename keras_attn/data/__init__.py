"""Tokenizers, tf.data pipelines and data sets."""

from keras_attn.data.base_tokenizer import Tokenizer
from keras_attn.data.byte_level_bpe import ByteLevelBPETokenizer, StreamDecoder
from keras_attn.data.dates import make_dates, split_dates
from keras_attn.data.epochs import shuffled_dataset
from keras_attn.data.load_text_tokenizer import load_text_tokenizer
from keras_attn.data.parallel import load_multi30k, parallel_dataset, read_parallel
from keras_attn.data.sentencepiece import SentencePieceTokenizer
from keras_attn.data.text_tokenizer import TextTokenizer
from keras_attn.data.tokenizers import (
    CharacterTokenizer,
    SubwordTokenizer,
    load_tokenizer,
)
from keras_attn.data.wordpiece import WordPieceTokenizer

__all__ = [
    "ByteLevelBPETokenizer",
    "CharacterTokenizer",
    "SentencePieceTokenizer",
    "StreamDecoder",
    "SubwordTokenizer",
    "TextTokenizer",
    "Tokenizer",
    "WordPieceTokenizer",
    "load_multi30k",
    "load_text_tokenizer",
    "load_tokenizer",
    "make_dates",
    "parallel_dataset",
    "read_parallel",
    "shuffled_dataset",
    "split_dates",
]

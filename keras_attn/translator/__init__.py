"""Translators: an encoder-decoder with its tokenizers, and the loop that trains one."""

from keras_attn.translator.training import TranslationScore, fit_translator
from keras_attn.translator.translator import Alignment, Translator

__all__ = ["Alignment", "TranslationScore", "Translator", "fit_translator"]


def __dir__():
    return __all__

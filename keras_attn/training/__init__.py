"""What a model is fitted by: scores, and the translator's training run."""

from keras_attn.training.scores import bleu, exact_match
from keras_attn.training.translation import TranslationScore, fit_translator

__all__ = ["TranslationScore", "bleu", "exact_match", "fit_translator"]

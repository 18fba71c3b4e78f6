"""Callbacks that write plots of attention and predictions to TensorBoard."""

from keras_attn.viz.callbacks.attention import AttentionMaps, ImageAttentionMaps
from keras_attn.viz.callbacks.co_attention import CoAttentionMaps
from keras_attn.viz.callbacks.generation import CodeMaps, GeneratedImageMaps
from keras_attn.viz.callbacks.interaction import InteractionMaps
from keras_attn.viz.callbacks.pairs import RelevanceMaps, SimilarityMaps
from keras_attn.viz.callbacks.predictions import DetectionBoxes, SegmentationMaps
from keras_attn.viz.callbacks.reading import ReadingAttentionMaps
from keras_attn.viz.callbacks.speech import SpeechAttentionMaps
from keras_attn.viz.callbacks.walks import WalkAttentionMaps
from keras_attn.viz.callbacks.words import CaptionAttentionMaps, GlimpseMaps

__all__ = [
    "AttentionMaps",
    "CaptionAttentionMaps",
    "CoAttentionMaps",
    "CodeMaps",
    "DetectionBoxes",
    "GeneratedImageMaps",
    "GlimpseMaps",
    "ImageAttentionMaps",
    "InteractionMaps",
    "ReadingAttentionMaps",
    "RelevanceMaps",
    "SegmentationMaps",
    "SimilarityMaps",
    "SpeechAttentionMaps",
    "WalkAttentionMaps",
]


def __dir__():
    return __all__

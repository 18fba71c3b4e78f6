"""See what a model attends to: capture, plots, TensorBoard."""

from keras_attn.viz import callbacks
from keras_attn.viz.capture import capture_attention
from keras_attn.viz.images import (
    attention_rollout,
    image_attention,
    plot_image_attention,
    plot_position_similarity,
)
from keras_attn.viz.plots import plot_alignment, save_figure
from keras_attn.viz.reconstruction import plot_reconstruction, reconstruct_images

__all__ = [
    "attention_rollout",
    "callbacks",
    "capture_attention",
    "image_attention",
    "plot_alignment",
    "plot_image_attention",
    "plot_position_similarity",
    "plot_reconstruction",
    "reconstruct_images",
    "save_figure",
]

"""See what a model attends to: capture, plots, TensorBoard."""

from keras_attn.viz import callbacks
from keras_attn.viz.capture import capture_attention
from keras_attn.viz.plots import plot_alignment, save_figure

__all__ = ["callbacks", "capture_attention", "plot_alignment", "save_figure"]

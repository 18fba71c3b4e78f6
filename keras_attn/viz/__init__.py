"""What a model attends to, sees and predicts: plots, a page, TensorBoard."""

from keras_attn.layers.capture import capture_attention
from keras_attn.viz import callbacks
from keras_attn.viz.animation import alignment_frames, save_animation
from keras_attn.viz.attention_layer import plot_attention_layer
from keras_attn.viz.co_attention import (
    CoAttention,
    capture_co_attention,
    plot_region_words,
    plot_word_regions,
)
from keras_attn.viz.detections import plot_detections
from keras_attn.viz.drawing.plots import plot_alignment, save_figure
from keras_attn.viz.generation import (
    plot_codes,
    plot_generated_images,
    plot_image_masks,
)
from keras_attn.viz.heads import plot_attention_heads
from keras_attn.viz.image_page import caption_page, image_attention_page
from keras_attn.viz.images import (
    attention_rollout,
    image_attention,
    image_rollout,
    plot_image_attention,
    plot_position_similarity,
)
from keras_attn.viz.interaction import plot_interaction
from keras_attn.viz.layer_page import attention_layer_page
from keras_attn.viz.layer_steps import AttentionSteps, attention_steps
from keras_attn.viz.masks import MaskExample, example_masks, plot_masks
from keras_attn.viz.model_sizes import plot_model_scores, plot_model_sizes
from keras_attn.viz.page import attention_comparison_page, attention_page
from keras_attn.viz.positions import plot_positions
from keras_attn.viz.questions import plot_caption_attention, plot_glimpses
from keras_attn.viz.reading import plot_reading_attention, reading_attention
from keras_attn.viz.receptive_field import plot_receptive_field, receptive_field
from keras_attn.viz.reconstruction import plot_reconstruction, reconstruct_images
from keras_attn.viz.relevance import image_relevance
from keras_attn.viz.scores import plot_scores_by_length
from keras_attn.viz.segmentation import plot_segmentation
from keras_attn.viz.similarity import image_text_similarity, plot_similarity
from keras_attn.viz.speech import plot_speech_attention
from keras_attn.viz.walks import plot_walk
from keras_attn.viz.windows import plot_windows
from keras_attn.viz.worked_examples import (
    WorkedExample,
    worked_convolution,
    worked_transposed_convolution,
    worked_unpooling,
)

__all__ = [
    "alignment_frames",
    "AttentionSteps",
    "CoAttention",
    "MaskExample",
    "WorkedExample",
    "attention_comparison_page",
    "attention_layer_page",
    "attention_page",
    "attention_rollout",
    "attention_steps",
    "callbacks",
    "caption_page",
    "capture_attention",
    "capture_co_attention",
    "example_masks",
    "image_attention",
    "image_attention_page",
    "image_relevance",
    "image_rollout",
    "image_text_similarity",
    "plot_alignment",
    "plot_attention_heads",
    "plot_attention_layer",
    "plot_caption_attention",
    "plot_codes",
    "plot_detections",
    "plot_generated_images",
    "plot_glimpses",
    "plot_image_attention",
    "plot_image_masks",
    "plot_interaction",
    "plot_model_scores",
    "plot_model_sizes",
    "plot_masks",
    "plot_position_similarity",
    "plot_positions",
    "plot_reading_attention",
    "plot_receptive_field",
    "plot_reconstruction",
    "plot_region_words",
    "plot_scores_by_length",
    "plot_segmentation",
    "plot_similarity",
    "plot_speech_attention",
    "plot_walk",
    "plot_windows",
    "plot_word_regions",
    "reading_attention",
    "receptive_field",
    "reconstruct_images",
    "save_animation",
    "save_figure",
    "worked_convolution",
    "worked_transposed_convolution",
    "worked_unpooling",
]


def __dir__():
    return __all__

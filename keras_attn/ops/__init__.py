"""The math of attention and of boxes as pure functions: no weights, no state."""

from keras_attn.kernels.bias import add_bias
from keras_attn.kernels.gelu import gelu_tanh, quick_gelu
from keras_attn.kernels.resize import resize_bilinear
from keras_attn.ops.anchors import base_anchors, grid_anchors
from keras_attn.ops.attention import (
    MASKED,
    additive_scores,
    attention_weights,
    dot_scores,
    maxout,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from keras_attn.ops.audio import (
    dft_kernel,
    log_mel_spectrogram,
    mel_filters,
    move_to_front,
    normalize_utterances,
    num_frames,
    stack_frames,
)
from keras_attn.ops.box_matching import match_boxes, sample_matches
from keras_attn.ops.boxes import (
    box_areas,
    box_locations,
    clip_boxes,
    convert_boxes,
    decode_boxes,
    encode_boxes,
    pairwise_iou,
)
from keras_attn.ops.cache import CachedKeysAndValues, with_cache
from keras_attn.ops.discrete_codes import (
    cosine_annealing,
    divergence_from_uniform,
    gumbel_softmax,
    map_pixels,
    most_probable_codes,
    unmap_pixels,
)
from keras_attn.ops.hard_attention import (
    attention_entropy,
    coverage_penalty,
    most_probable_places,
    places_log_probability,
    sampled_places,
)
from keras_attn.ops.image_masks import (
    image_column_mask,
    image_previous_tokens_mask,
    image_window_mask,
    text_image_mask,
)
from keras_attn.ops.instance_masks import paste_masks
from keras_attn.ops.masks import (
    banded_mask,
    both_masks,
    causal_mask,
    column_mask,
    document_mask,
    merge_masks,
)
from keras_attn.ops.non_max_suppression import non_max_suppression
from keras_attn.ops.patches import (
    image_to_patches,
    patches_to_image,
    resize_positions,
    sinusoid_grid,
)
from keras_attn.ops.pooling import max_pool_with_indices, max_unpool
from keras_attn.ops.positions import (
    document_positions,
    row_positions,
    sinusoids,
    sinusoids_2d,
    token_positions,
    tokens_in_order,
)
from keras_attn.ops.relative import (
    relative_distances,
    relative_scores,
    relative_shift,
    relative_sinusoids,
)
from keras_attn.ops.roi_align import roi_align
from keras_attn.ops.roi_pool import roi_pool
from keras_attn.ops.spatial import glimpse_scores, word_guided_weights
from keras_attn.ops.token_probabilities import (
    token_entropies,
    token_kl,
    token_log_probabilities,
)
from keras_attn.ops.weight_products import project, project_neighborhoods
from keras_attn.ops.windows import (
    cyclic_shift,
    relative_position_rows,
    shifted_window_mask,
    window_merge,
    window_partition,
)

__all__ = [
    "CachedKeysAndValues",
    "MASKED",
    "add_bias",
    "additive_scores",
    "attention_entropy",
    "attention_weights",
    "banded_mask",
    "base_anchors",
    "both_masks",
    "box_areas",
    "box_locations",
    "causal_mask",
    "clip_boxes",
    "column_mask",
    "convert_boxes",
    "cosine_annealing",
    "coverage_penalty",
    "cyclic_shift",
    "decode_boxes",
    "dft_kernel",
    "divergence_from_uniform",
    "document_mask",
    "document_positions",
    "dot_scores",
    "encode_boxes",
    "gelu_tanh",
    "glimpse_scores",
    "grid_anchors",
    "gumbel_softmax",
    "image_column_mask",
    "image_previous_tokens_mask",
    "image_to_patches",
    "image_window_mask",
    "log_mel_spectrogram",
    "map_pixels",
    "match_boxes",
    "max_pool_with_indices",
    "max_unpool",
    "maxout",
    "mel_filters",
    "merge_heads",
    "merge_masks",
    "most_probable_codes",
    "most_probable_places",
    "move_to_front",
    "non_max_suppression",
    "normalize_utterances",
    "num_frames",
    "pairwise_iou",
    "paste_masks",
    "patches_to_image",
    "places_log_probability",
    "project",
    "project_neighborhoods",
    "quick_gelu",
    "relative_distances",
    "relative_position_rows",
    "relative_scores",
    "relative_shift",
    "relative_sinusoids",
    "resize_bilinear",
    "resize_positions",
    "roi_align",
    "roi_pool",
    "row_positions",
    "sample_matches",
    "sampled_places",
    "scaled_dot_product_attention",
    "shifted_window_mask",
    "sinusoid_grid",
    "sinusoids",
    "sinusoids_2d",
    "split_heads",
    "stack_frames",
    "text_image_mask",
    "token_entropies",
    "token_kl",
    "token_log_probabilities",
    "token_positions",
    "tokens_in_order",
    "unmap_pixels",
    "window_merge",
    "window_partition",
    "with_cache",
    "word_guided_weights",
]


def __dir__():
    return __all__

"""The math of attention as pure functions of `keras.ops`: no weights, no state."""

from keras_attn.kernels.bias import add_bias
from keras_attn.kernels.resize import resize_bilinear
from keras_attn.ops.activations import gelu_tanh
from keras_attn.ops.attention import (
    MASKED,
    additive_scores,
    attention_weights,
    dot_scores,
    maxout,
    merge_heads,
    project,
    scaled_dot_product_attention,
    split_heads,
)
from keras_attn.ops.cache import CachedKeysAndValues, with_cache
from keras_attn.ops.masks import banded_mask, both_masks, causal_mask, merge_masks
from keras_attn.ops.patches import (
    image_to_patches,
    patches_to_image,
    resize_positions,
    sinusoid_grid,
)
from keras_attn.ops.pooling import max_pool_with_indices, max_unpool
from keras_attn.ops.positions import (
    row_positions,
    sinusoids,
    sinusoids_2d,
    token_positions,
)
from keras_attn.ops.relative import (
    relative_distances,
    relative_scores,
    relative_shift,
    relative_sinusoids,
)
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
    "attention_weights",
    "banded_mask",
    "both_masks",
    "causal_mask",
    "cyclic_shift",
    "dot_scores",
    "gelu_tanh",
    "image_to_patches",
    "max_pool_with_indices",
    "max_unpool",
    "maxout",
    "merge_heads",
    "merge_masks",
    "patches_to_image",
    "project",
    "relative_distances",
    "relative_position_rows",
    "relative_scores",
    "relative_shift",
    "relative_sinusoids",
    "resize_bilinear",
    "resize_positions",
    "row_positions",
    "scaled_dot_product_attention",
    "shifted_window_mask",
    "sinusoid_grid",
    "sinusoids",
    "sinusoids_2d",
    "split_heads",
    "token_positions",
    "window_merge",
    "window_partition",
    "with_cache",
]

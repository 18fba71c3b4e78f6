"""A bidirectional LSTM that shortens its sequence, the pBLSTM of a listener.

Legend: B batch, T frames, D width, U units of each direction, R reduction.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_positive, check_rank
from keras_attn.layers.attention.attention_checks import check_padding_mask
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.recurrent.recurrent import Bidirectional, Recurrent
from keras_attn.ops import both_masks, stack_frames


@keras.saving.register_keras_serializable("keras_attn")
class PyramidalBLSTM(BaseLayer):
    """`h_i = BLSTM(h_{i-1}, [x_{Ri}; …; x_{Ri+R-1}])`: R frames become one.

    Three of these layers with R = 2 make a recording eight times shorter, so that
    attention has fewer positions to choose from and a decoder learns faster.

    Args:
        units: U, units of each direction.
        reduction: R, the number of successive frames that are concatenated; 1 for an
            ordinary bidirectional LSTM.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True = a real frame. Default: every frame is real.

    Returns:
        outputs: (B, ⌈T / R⌉, 2 U), forward and backward states. The values at padding
            are meaningless.
        padding_mask: Boolean (B, ⌈T / R⌉), True = at least one of the R frames is
            real.

    Raises:
        ValueError: If `units` or `reduction` is not a positive integer, `inputs` does
            not have 3 axes, or `padding_mask` has the wrong shape.

    Masking:
        The Keras mask of the inputs is used as a `padding_mask`. Frames of padding that
        are concatenated with real frames count as 0, as at the end of an odd number of
        frames; all others are skipped. Padding belongs at the end: before the first
        frame it would change which frames become one.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers

        features = np.random.normal(size=(2, 6, 40))
        mask = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
        outputs, mask = layers.PyramidalBLSTM(64)(features, mask)  # (2, 3, 128), (2, 3)
        ```

    Reference:
        Chan et al. 2016, "Listen, Attend and Spell", section 3.1 (arXiv:1508.01211).
    """

    def __init__(self, units: int, reduction: int = 2, **kwargs):
        super().__init__(**kwargs)
        self.units = check_positive("units", units)
        self.reduction = check_positive("reduction", reduction)
        # `Recurrent` is `keras.layers.RNN`, in training on TensorFlow with the gradient
        # written out, by `kernels/lstm.py:lstm`. It is not `LSTM`, which selects a
        # fused GPU kernel that XLA and exporters do not support.
        policy = self.dtype_policy
        self.blstm = Bidirectional(
            Recurrent(
                keras.layers.LSTMCell(units, dtype=policy, name="cell"),
                return_sequences=True,
                dtype=policy,
                name="direction",
            ),
            dtype=policy,
            name="blstm",
        )

    def build(self, inputs_shape, padding_mask_shape=None):
        width = self.reduction * inputs_shape[-1]
        self.blstm.build((inputs_shape[0], None, width))

    # How Keras names the mask of the inputs depends on the number of tensors in the
    # call.
    def call(self, inputs, padding_mask=None, mask=None, inputs_mask=None):
        check_rank("inputs", inputs, 3, "(batch, frames, width)")
        check_padding_mask("padding_mask", padding_mask, *inputs.shape[:2])
        mask = both_masks(padding_mask, both_masks(mask, inputs_mask))
        if mask is None:
            mask = ops.ones_like(inputs[..., 0], dtype="bool")
        frames, mask = stack_frames(inputs, mask, self.reduction)
        return self.blstm(frames, mask=mask), mask

    def compute_mask(self, inputs, previous_mask=None):
        return None

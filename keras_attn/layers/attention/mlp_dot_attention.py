"""Single-head attention whose score is a dot product of two networks' outputs.

Legend: B batch, T query length, S key length, A units.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_positive
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers.attention.scored_attention import ScoredAttention
from keras_attn.layers.projection import add_projection
from keras_attn.ops import dot_scores


@keras.saving.register_keras_serializable("keras_attn")
@described_as(ScoredAttention)
class MLPDotAttention(ScoredAttention):
    """Scores `e_ts = ⟨φ(q_t), ψ(k_s)⟩`, with `φ(q) = tanh(W q + b)`, and ψ likewise.

    `ScoredAttention` computes `α_t = softmax(e_t)` and the context `c_t = Σ_s α_ts v_s`
    from the scores; see there for outputs and masking. φ and ψ of the
    paper are "MLP networks" of unpublished sizes; here each has one layer.

    Args:
        units: A, the width of the outputs of φ and ψ.
        kernel_initializer: For both kernels.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers

        states, annotations = np.random.normal(size=(2, 5, 32)), np.ones((2, 3, 48))
        mask = np.array([[1, 1, 1], [1, 1, 0]])  # 0 = padding.
        attention = layers.MLPDotAttention(units=64)
        context = attention(states, annotations, padding_mask=mask)  # (2, 5, 48)
        ```

    Reference:
        Chan et al. 2016, "Listen, Attend and Spell", section 3.2 (arXiv:1508.01211).
    """

    def __init__(
        self,
        units: int,
        *,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = check_positive("units", units)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        # Not "key", whose bias the softmax would cancel.
        self.query_mlp = add_projection(self, "query_mlp", query_shape, self.units)
        self.key_mlp = add_projection(self, "key_mlp", key_shape, self.units)

    @described_as(ScoredAttention.project_key)
    def project_key(self, key):
        """ψ(k), (B, S, A)."""
        return ops.tanh(self.key_mlp.project(key))

    @described_as(ScoredAttention.scores)
    def scores(self, query, projected_key):
        """`⟨φ(q), ψ(k)⟩`, (B, T, S)."""
        return dot_scores(ops.tanh(self.query_mlp.project(query)), projected_key, 1.0)

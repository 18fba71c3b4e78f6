"""Additive attention, the alignment model of Bahdanau et al.

    u_s = U k_s                `project_key`, once for all queries            (B, S, A)
    e_ts = vᵀ tanh(W q_t + u_s)      `scores`                                 (B, T, S)
    α_t = softmax(e_t)               `attend`, 0 where the mask is False      (B, T, S)
    c_t = Σ_s α_ts v_s               `attend`, `matmul(α, value)`            (B, T, Dv)

The base class has `attend`, with nothing else in it, and a call: checks, then the three
in this order. A query whose keys are all masked gets α_t = 0 and c_t = 0.

Legend: B batch, T query length, S key length, A units, Dv width of the values.
"""

import keras

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_positive
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers.attention.scored_attention import ScoredAttention
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.projection import add_projection
from keras_attn.ops import additive_scores


@keras.saving.register_keras_serializable("keras_attn")
@described_as(ScoredAttention)
class AdditiveAttention(ScoredAttention):
    """Scores by a feed-forward network: `e_ts = vᵀ tanh(W q_t + U k_s)`.

    The context is `c_t = Σ_s softmax(e_t)_s v_s`. `W`, `U` and `v` of the paper are the
    kernels of `query` and `key`, and `score_vector`.

    Args:
        units: A, the width of the hidden layer (the paper's n', 1000).
        use_bias: Whether to add a bias inside the tanh. The paper has none.
        kernel_initializer: For the three weights. In the paper `W` and `U` are drawn
            from `N(0, 0.001²)` and `v` starts at zero; the Glorot default trains
            equally well and scales with the width.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers

        states, annotations = np.random.normal(size=(2, 5, 32)), np.ones((2, 7, 48))
        mask = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]])
        context, scores = layers.AdditiveAttention(units=64)(
            states, annotations, padding_mask=mask, return_attention_scores=True
        )  # (2, 5, 48), (2, 5, 7)
        ```

    Reference:
        Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning
        to Align and Translate", section 3.1 and A.1.2 (arXiv:1409.0473).
    """

    def __init__(
        self,
        units: int,
        *,
        use_bias: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = check_positive("units", units)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self.query = add_projection(self, "query", query_shape, self.units, False)
        self.key = add_projection(self, "key", key_shape, self.units, self.use_bias)
        self.score_vector = self.add_weight(
            name="score_vector",
            shape=(self.units, 1),
            initializer=independent_copy(self.kernel_initializer, "score_vector"),
        )

    @described_as(ScoredAttention.project_key)
    def project_key(self, key):
        """`U k`, (B, S, A)."""
        return self.key.project(key)

    @described_as(ScoredAttention.scores)
    def scores(self, query, projected_key):
        """`vᵀ tanh(W q + U k)`, (B, T, S)."""
        return additive_scores(
            self.query.project(query), projected_key, self.score_vector
        )

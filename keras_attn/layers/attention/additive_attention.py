"""Additive attention, the alignment model of Bahdanau et al.

Legend: B batch, T query length, S key length, A units.
"""

import keras

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_positive
from keras_attn.docstrings.options import described_as
from keras_attn.layers.adaptation.adaptable import Adaptable
from keras_attn.layers.attention.scored_attention import ScoredAttention
from keras_attn.layers.initializers import fork
from keras_attn.ops import additive_scores, project


@keras.saving.register_keras_serializable("keras_attn")
@described_as(ScoredAttention)
class AdditiveAttention(Adaptable, ScoredAttention):
    """Scores by a feed-forward network: `e_ts = vᵀ tanh(W q_t + U k_s)`.

    `ScoredAttention` computes `α_t = softmax(e_t)` and the context `c_t = Σ_s α_ts v_s`
    from the scores; see there for outputs and masking. `W`, `U` and `v`
    of the paper are `query_kernel`, `key_kernel` and `score_vector`.

    Args:
        units: A, the width of the hidden layer (the paper's n', 1000).
        use_bias: Whether to add a bias inside the tanh. The paper has none.
        kernel_initializer: For the three weights. In the paper `W` and `U` are drawn
            from `N(0, 0.001²)` and `v` starts at zero; the Glorot default trains
            equally well and scales with the width.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Example:
        ```python
        attention = AdditiveAttention(units=64)
        context, scores = attention(
            states, annotations, padding_mask=mask, return_attention_scores=True
        )
        ```

    Reference:
        Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning
        to Align and Translate", section 3.1 and A.1.2 (arXiv:1409.0473).
    """

    kernel_names = ("query_kernel", "key_kernel")

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

        def add(name, shape):
            initializer = fork(self.kernel_initializer, name)
            return self.add_weight(name=name, shape=shape, initializer=initializer)

        self.query_kernel = add("query_kernel", (query_shape[-1], self.units))
        self.key_kernel = add("key_kernel", (key_shape[-1], self.units))
        self.score_vector = add("score_vector", (self.units, 1))
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.units,), initializer="zeros"
            )

    @described_as(ScoredAttention.project_key)
    def project_key(self, key):
        """`U k`, (B, S, A)."""
        return project(key, self.key_kernel, self.bias)

    @described_as(ScoredAttention.scores)
    def scores(self, query, projected_key):
        """`vᵀ tanh(W q + U k)`, (B, T, S)."""
        projected_query = project(query, self.query_kernel)
        return additive_scores(projected_query, projected_key, self.score_vector)

"""Single-head attention with product scores: dot, scaled, general, linear.

Legend: B batch, T query length, S key length, D width.
"""

import math
from typing import Literal, get_args

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_choice
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers.attention.scored_attention import ScoredAttention
from keras_attn.layers.projection import add_projection
from keras_attn.ops import dot_scores, project

Score = Literal["dot", "scaled_dot", "general", "linear"]
SCORES = get_args(Score)


@keras.saving.register_keras_serializable("keras_attn")
@described_as(ScoredAttention)
class DotProductAttention(ScoredAttention):
    """Scores computed by one of four products.

    | `score`      | `e_ts`             | weights | widths of query and key |
    |--------------|--------------------|---------|-------------------------|
    | `dot`        | `q_t · k_s`        | none    | equal                   |
    | `scaled_dot` | `q_t · k_s / √D`   | none    | equal                   |
    | `general`    | `q_tᵀ W k_s`       | `W`     | any                     |
    | `linear`     | `wᵀ [q_t; k_s]`    | `w`     | any                     |

    In `linear` the term of the query is the same for every key, so the softmax cancels
    it and all queries get the same probabilities. It is included for teaching and as a
    baseline. Call arguments, outputs and masking: see `ScoredAttention`.

    Args:
        score: One of the four above.
        kernel_initializer: For `W` and `w`.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers

        states, annotations = np.random.normal(size=(2, 5, 32)), np.ones((2, 7, 48))
        layers.DotProductAttention(score="general")(states, annotations)  # (2, 5, 48)
        ```

    Reference:
        Luong, Pham, Manning 2015, section 3.1 (arXiv:1508.04025);
        Vaswani et al. 2017, section 3.2.1 (arXiv:1706.03762).
    """

    def __init__(
        self,
        score: Score = "scaled_dot",
        *,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice("score", score, SCORES)
        self.score = score
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        query_dim = query_shape[-1]
        key_dim = (value_shape if key_shape is None else key_shape)[-1]
        if not self.projects_key and query_dim != key_dim:
            raise ValueError(
                f"`score={self.score!r}` needs queries and keys of the same width: "
                "project one of them, or use score='general'. "
                f"Received: query width={query_dim}, "
                f"key width={key_dim}"
            )
        # The `w` of `linear` is initialized as one kernel over [q; k].
        shapes = {"general": (query_dim, key_dim), "linear": (query_dim + key_dim, 1)}
        if self.projects_key:
            width, units = shapes[self.score]
            self.projection = add_projection(
                self, "projection", (width,), units, use_bias=False
            )

    @property
    def projects_key(self):
        """Whether `project_key` returns something other than the key."""
        return self.score in ("general", "linear")

    @described_as(ScoredAttention.project_key)
    def project_key(self, key):
        """`W k` (B, S, Dq), `w · k` (B, S, 1), or the key itself."""
        if self.score == "general":
            return self.projection.project_back(key)
        if self.score == "linear":
            return project(key, self.projection.value()[-key.shape[-1] :])
        return key

    @described_as(ScoredAttention.scores)
    def scores(self, query, projected_key):
        """`e_ts` of the table above, (B, T, S)."""
        if self.score == "linear":
            query_part = project(query, self.projection.value()[: query.shape[-1]])
            return ops.add(query_part, ops.swapaxes(projected_key, 1, 2))
        scaled = self.score == "scaled_dot"
        scale = 1.0 / math.sqrt(query.shape[-1]) if scaled else 1.0
        return dot_scores(query, projected_key, scale)

"""The embeddings of DALL·E's two kinds of tokens: a caption's, and an image's codes.

Legend: B batch, T tokens, L positions of a caption, U codes, R rows and C columns of
codes, V vocabulary, D width.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_pair, check_positive, check_rank
from keras_attn.checks.indices import check_indices
from keras_attn.checks.inputs import check_length
from keras_attn.layers.adaptation.kernel_layer import KernelLayer
from keras_attn.layers.attention.attention_checks import check_padding_mask
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy
from keras_attn.ops import tokens_in_order
from keras_attn.ops.weight_products import kernel_rows


@keras.saving.register_keras_serializable("keras_attn")
class CaptionEmbedding(KernelLayer, BaseLayer):
    """A caption of L positions, with a learned vector in place of each missing token.

    `x_p = E[token_p] + P[p]` for the real tokens, and `x_p = N[p] + P[p]` after the
    last one: each position has its own padding token N[p], which is attended to as a
    word is. The real tokens may stand anywhere in a row; they are moved to its front.

    Args:
        vocabulary_size: V.
        output_dim: D.
        max_length: L.
        embeddings_initializer: Initializer of E (V, D), N (L, D) and P (L, D).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        token_ids: Integers in [0, V), (B, T), T ≤ L.
        padding_mask: (B, T), True = a real token.

    Returns:
        (B, L, D).

    Raises:
        ValueError: If a size is not a positive integer, `token_ids` does not have 2
            axes or is longer than L, `padding_mask` has a different shape, or, in an
            eager call, a token is out of range.

    Reference:
        Ramesh et al. 2021, section 2.2 (arXiv:2102.12092).
    """

    kernel_name = "token_embeddings"

    def __init__(
        self,
        vocabulary_size: int,
        output_dim: int,
        max_length: int,
        *,
        embeddings_initializer: Initializer = "uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = check_positive("vocabulary_size", vocabulary_size)
        self.output_dim = check_positive("output_dim", output_dim)
        self.max_length = check_positive("max_length", max_length)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, token_ids_shape, padding_mask_shape):
        tables = {
            "token_embeddings": self.vocabulary_size,
            "padding_embeddings": self.max_length,
            "position_embeddings": self.max_length,
        }
        _add_tables(self, tables)

    @property
    def index_ranges(self):
        """Range of valid tokens, `(start, stop)`, excluding `stop`."""
        return {"token_ids": (0, self.vocabulary_size)}

    @property
    def length_ranges(self):
        """Range of valid lengths, `(start, stop)`, excluding `stop`."""
        return {"token_ids": (1, self.max_length + 1)}

    def call(self, token_ids, padding_mask):
        self._check_shapes(token_ids, padding_mask)
        check_indices("token_ids", token_ids, self.index_ranges["token_ids"])
        tokens, is_real = tokens_in_order(token_ids, padding_mask, self.max_length)
        words = kernel_rows(self.token_embeddings, tokens)
        hidden = ops.where(
            ops.expand_dims(is_real, -1),
            words,
            ops.cast(ops.expand_dims(self.padding_embeddings, 0), words.dtype),
        )
        return ops.add(hidden, ops.cast(self.position_embeddings, hidden.dtype))

    def _check_shapes(self, token_ids, padding_mask):
        check_rank("token_ids", token_ids, 2, "(batch, length)")
        check_length("token_ids", token_ids.shape, (0, self.max_length + 1))
        check_padding_mask("padding_mask", padding_mask, *token_ids.shape)

    def compute_output_spec(self, token_ids, padding_mask):
        self._check_shapes(token_ids, padding_mask)
        shape = (token_ids.shape[0], self.max_length, self.output_dim)
        return keras.KerasTensor(shape, self.compute_dtype)


@keras.saving.register_keras_serializable("keras_attn")
class ImageCodeEmbedding(KernelLayer, BaseLayer):
    """The codes of an image, row by row: `E[code_p] + Q[p // C] + S[p % C]`.

    Args:
        vocabulary_size: V.
        output_dim: D.
        grid_size: R and C, one number or two.
        embeddings_initializer: Initializer of E (V, D), Q (R, D) and S (C, D).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        codes: Integers in [0, V), (B, U), U ≤ R · C.
        positions: Integers in [0, R · C), (B, U). Default: 0 … U-1.

    Returns:
        (B, U, D).

    Raises:
        ValueError: If a size is not a positive integer, `codes` does not have 2 axes or
            is longer than R · C, or, in an eager call, a code or a position is out of
            range.

    Reference:
        Ramesh et al. 2021, appendix B.1 (arXiv:2102.12092).
    """

    kernel_name = "code_embeddings"

    def __init__(
        self,
        vocabulary_size: int,
        output_dim: int,
        grid_size: int | tuple[int, int],
        *,
        embeddings_initializer: Initializer = "uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = check_positive("vocabulary_size", vocabulary_size)
        self.output_dim = check_positive("output_dim", output_dim)
        self.grid_size = check_pair("grid_size", grid_size)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, codes_shape, positions_shape=None):
        rows, columns = self.grid_size
        tables = {
            "code_embeddings": self.vocabulary_size,
            "row_embeddings": rows,
            "column_embeddings": columns,
        }
        _add_tables(self, tables)

    @property
    def max_length(self):
        """R · C, the codes of a whole image."""
        return self.grid_size[0] * self.grid_size[1]

    @property
    def index_ranges(self):
        """Ranges of valid codes and positions, `(start, stop)`, excluding `stop`."""
        return {"codes": (0, self.vocabulary_size), "positions": (0, self.max_length)}

    @property
    def length_ranges(self):
        """Range of valid lengths, `(start, stop)`, excluding `stop`."""
        return {"codes": (1, self.max_length + 1)}

    def call(self, codes, positions=None):
        self._check_shape(codes)
        check_indices("codes", codes, self.index_ranges["codes"])
        if positions is None:
            positions = ops.arange(ops.shape(codes)[1], dtype="int32")
        else:
            check_indices("positions", positions, self.index_ranges["positions"])
        columns = self.grid_size[1]
        hidden = kernel_rows(self.code_embeddings, codes)
        places = ops.add(
            ops.take(self.row_embeddings, positions // columns, axis=0),
            ops.take(self.column_embeddings, positions % columns, axis=0),
        )
        return ops.add(hidden, places)

    def _check_shape(self, codes):
        check_rank("codes", codes, 2, "(batch, length)")
        check_length("codes", codes.shape, (0, self.max_length + 1))

    def compute_output_spec(self, codes, positions=None):
        self._check_shape(codes)
        return keras.KerasTensor((*codes.shape, self.output_dim), self.compute_dtype)


def _add_tables(layer, tables):
    """Adds weights with these numbers of rows, by name."""
    for name, rows in tables.items():
        table = layer.add_weight(
            name=name,
            shape=(rows, layer.output_dim),
            initializer=independent_copy(layer.embeddings_initializer, name),
        )
        setattr(layer, name, table)

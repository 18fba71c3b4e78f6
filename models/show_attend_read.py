"""Show, attend and read (SAR): reads the word in an image, character by character.

    v = ResNet(image)                                 `backbone`: a map
    h_W = LSTM(max_i v_i1, …, max_i v_iw)             `encoder_0`, `encoder_1`: the word
    h'_t = LSTM(x_t, h'_{t-1}), x_0 = h_W,            `decoder_0`, `decoder_1`: states
           x_1 = embedding(start), x_t = embedding(y_{t-1})
    e_ij = wᵀ tanh(Σ_pq U_pq v_{i+p, j+q} + W h'_t)   `attention`: scores by location
    g_t = Σ_ij softmax(e_t)_ij v_ij                   `attention`: glimpse
    p(y_t) = softmax(W_o [h'_t; g_t])                 `logits`: before the softmax

e, its softmax and g are computed by `layers/attention/additive_attention_2d.py`; p and
q run over the 3 × 3 neighborhood of a location.

Legend: B batch, H and W pixels, h and w rows and columns of the map, C its channels,
T characters, U units, V vocabulary.
Layers: `column_mask`, `backbone`, `column_pooling`, `encoder_0`, `encoder_1`,
`embedding`, `decoder_0`, `decoder_1`, `attention`, `logits`. `incremental()` finds them
by these names. `backbone` is a model of `stem_0_conv`, `stem_0_norm`, `stem_1_…`, and
in each stage `stage_0_pooling`, `stage_0_block_0_0_conv`, `…_0_norm`, `…_1_conv`,
`…_1_norm`, `…_shortcut_conv`, `…_shortcut_norm`, and at its end `stage_0_conv`,
`stage_0_norm`.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import keras
from keras import ops
from keras.layers import LSTMCell, MaxPooling2D

from keras_attn.checks.argument_types import MayBeEmpty
from keras_attn.decoding import IncrementalPair
from keras_attn.layers import AdditiveAttention2D, ColumnMask, Embedding
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.decoders.pair_builders import build_pair, inputs_like
from keras_attn.models.parts.decoders.recurrent_parts import (
    layer_states,
    recurrent_layer,
    step_of_cells,
)
from keras_attn.models.parts.functional import Functional, by_name, numbered
from keras_attn.models.parts.heads import logits_layer
from keras_attn.models.parts.images import image_sides, normed_convolution

# Li et al. 2019, table 1 and section "Implementation details". The paper reads 94
# characters; the vocabulary also has the four special tokens of `CharacterTokenizer`.
VARIANTS = {
    "base": {
        "vocabulary_size": 98,
        "image_size": (48, 160),
        "stem_dims": (64, 128),
        "hidden_dims": (256, 256, 512, 512),
        "num_blocks": (1, 2, 5, 3),
        "num_layers": 2,
        "hidden_dim": 512,
        "attention_dim": 512,
    }
}
CARDS = model_cards(
    "show_attend_read",
    {"base": None},
    scores=[
        scored(f"{words} accuracy", "without a lexicon", "", {"base": score})
        for words, score in (("IIIT5K", 95.0), ("SVT", 91.2), ("ICDAR 2015", 78.8))
    ],
    title="Show, attend and read: a word in an image, character by character",
    paper="Li et al. 2019, arXiv:1811.00751",
    task="text recognition",
    inputs={
        "images": "(B, 48, W, 3) float, red, green, blue; " + tasks.UNIT,
        "widths": "(B,) int32, columns of pixels before the padding",
        "decoder_token_ids": "(B, T) int32, the characters after their start token",
    },
    outputs={"logits": "(B, T, V), before the softmax"},
)
# Rows and columns of the max pooling before each stage of the ResNet.
_POOLINGS = ((2, 2), (2, 2), (2, 1), (1, 1))


@registered(CARDS, VARIANTS)
def build_show_attend_read(
    variant: str = "base",
    *,
    vocabulary_size: int = FROM_VARIANT,
    image_size: int | tuple[int, int | None] = FROM_VARIANT,
    num_channels: int = 3,
    stem_dims: Annotated[Sequence[int], MayBeEmpty()] = FROM_VARIANT,
    hidden_dims: Sequence[int] = FROM_VARIANT,
    num_blocks: Sequence[int] = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    attention_dim: int = FROM_VARIANT,
    widths: bool = True,
    return_attention_scores: bool = False,
    name: str = "show_attend_read",
) -> "ShowAttendRead":
    """A ResNet, an LSTM that summarizes the word, and an LSTM that attends to the map.

    Images of different widths share a batch if they are padded at the right and their
    widths are given. Padding changes no output: it is set to zero before every
    convolution, the encoder stops at the last real column, and padding gets no
    attention. In training, the means and variances of the batch norms include it.

    The map has an eighth of the rows and a quarter of the columns of the images, both
    rounded up. Convolutions have no bias, because a norm follows.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V, characters and special tokens.
        image_size: H and W, pixels; W may be None, for any width.
        num_channels: Channels of the images.
        stem_dims: Channels of the convolutions before the first pooling.
        hidden_dims: Channels of the four stages; C is the last.
        num_blocks: Residual blocks of each stage, before the stage's last convolution.
        num_layers: LSTMs of the encoder, and of the decoder.
        hidden_dim: U, units of each LSTM, and width of the embedding.
        attention_dim: Units of the scores' hidden layer.
        widths: Whether the model has the input `widths`. Without it every image is as
            wide as the batch.
        return_attention_scores: Whether the model also returns the attention.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels), `widths` (B,), the columns of pixels
        before the padding, and `decoder_token_ids` (B, T) to logits (B, T, V); with
        `return_attention_scores=True` to a dictionary of `logits` and
        `attention_scores`, (B, 1, T, h · w), row after row of the map.

    Raises:
        ValueError: If a size is not a positive integer, there are not four stages, or
            the number of rows is unknown.

    Reference:
        Li et al. 2019, "Show, Attend and Read: A Simple and Strong Baseline for
        Irregular Text Recognition" (arXiv:1811.00751).
    """
    height, width = image_sides(image_size)
    if height is None:
        raise ValueError(
            "`image_size` must have a number of rows; columns may be None. "
            f"Received: image_size={image_size!r}"
        )
    shape = (height, width, num_channels)
    inputs: dict[str, Any] = {"images": keras.Input(shape, name="images")}
    backbone = _backbone(shape, widths, stem_dims, hidden_dims, num_blocks)
    layers = [
        backbone,
        # Not `ops.max`, whose gradient on JAX is NaN where XLA rounds the map
        # differently in the backward pass.
        MaxPooling2D(
            (backbone.output.shape[1], 1),
            data_format="channels_last",
            name="column_pooling",
        ),
        *_lstms("encoder", num_layers, hidden_dim),
        Embedding(vocabulary_size, hidden_dim, name="embedding"),
        *_lstms("decoder", num_layers, hidden_dim),
        AdditiveAttention2D(attention_dim, name="attention"),
        logits_layer(vocabulary_size, "logits"),
    ]
    if widths:
        layers.append(ColumnMask(name="column_mask"))
        inputs["widths"] = keras.Input((), dtype="int32", name="widths")
    inputs["decoder_token_ids"] = keras.Input(
        (None,), dtype="int32", name="decoder_token_ids"
    )
    layers = by_name(layers)
    word, memory = _encode(layers, inputs)
    outputs, _ = _decode(layers, inputs["decoder_token_ids"], word, memory)
    if not return_attention_scores:
        outputs = outputs["logits"]
    return ShowAttendRead(inputs=inputs, outputs=outputs, name=name)


def _lstms(side, count, units):
    """The LSTMs of the encoder or of the decoder."""
    return [
        recurrent_layer(LSTMCell(units, name=f"{side}_{index}_cell"), f"{side}_{index}")
        for index in range(count)
    ]


def _backbone(shape, with_mask, stem_dims, hidden_dims, num_blocks):
    """The 31-layer ResNet of table 1, as a model.

    Args:
        shape: H, W and channels of the images.
        with_mask: Whether the model also takes `pixels`, (B, W), True = not padding.
        stem_dims: As in `build_show_attend_read`, like the other arguments.
        hidden_dims: Channels of each stage.
        num_blocks: Residual blocks of each stage.

    Returns:
        A model from a dictionary of `images` and `pixels` to a map (B, h, w, C), zero
        where there is padding.
    """
    if not len(hidden_dims) == len(num_blocks) == len(_POOLINGS):
        raise ValueError(
            f"`hidden_dims` and `num_blocks` must each have {len(_POOLINGS)} numbers, "
            f"one for each stage. Received: hidden_dims={hidden_dims!r}, "
            f"num_blocks={num_blocks!r}"
        )
    inputs = {"images": keras.Input(shape, name="images")}
    if with_mask:
        inputs["pixels"] = keras.Input((shape[1],), dtype="bool", name="pixels")

    columns = inputs.get("pixels")
    hidden = _masked(inputs["images"], columns)
    for index, width in enumerate(stem_dims):
        hidden = normed_convolution(hidden, width, 3, f"stem_{index}")
        hidden = _masked(ops.relu(hidden), columns)
    stages = zip(_POOLINGS, hidden_dims, num_blocks, strict=True)
    for stage, (pooling, width, count) in enumerate(stages):
        if pooling != (1, 1):
            # A single last column is pooled by itself, as is one next to padding: no
            # value is below zero after a ReLU.
            hidden = MaxPooling2D(
                pooling,
                padding="same",
                data_format="channels_last",
                name=f"stage_{stage}_pooling",
            )(hidden)
            columns = _pooled(columns, pooling)
        for index in range(count):
            name = f"stage_{stage}_block_{index}"
            shortcut = hidden
            if hidden.shape[-1] != width:
                shortcut = normed_convolution(hidden, width, 1, f"{name}_shortcut")
            hidden = ops.relu(normed_convolution(hidden, width, 3, f"{name}_0"))
            # A new block equals its shortcut: otherwise each would double the variance.
            hidden = _masked(hidden, columns)
            hidden = normed_convolution(
                hidden, width, 3, f"{name}_1", gamma_initializer="zeros"
            )
            hidden = _masked(ops.relu(ops.add(hidden, shortcut)), columns)
        hidden = ops.relu(normed_convolution(hidden, width, 3, f"stage_{stage}"))
        hidden = _masked(hidden, columns)
    return keras.Model(inputs, hidden, name="backbone")


def _masked(hidden, columns):
    """A map with zeros in the columns that are False."""
    if columns is None:
        return hidden
    # (B, W) -> (B, 1, W, 1)
    return ops.multiply(hidden, ops.cast(columns[:, None, :, None], hidden.dtype))


def _pooled(columns, pooling):
    """The mask after a pooling: a column is real if its first one was."""
    if columns is None or pooling[1] == 1:
        return columns
    return columns[:, :: pooling[1]]


def _encode(layers, inputs):
    """The word h_W, (B, U), and a dictionary of the map v and its mask."""
    images, columns = {"images": inputs["images"]}, None
    if "widths" in inputs:
        columns = layers["column_mask"](inputs["widths"], inputs["images"])
        images["pixels"] = columns
    features = layers["backbone"](images)
    memory = {"memory": features}
    hidden = ops.squeeze(layers["column_pooling"](features), 1)  # (B, w, C)
    for pooling in _POOLINGS:
        columns = _pooled(columns, pooling)
    if columns is not None:
        # The same in every row: (B, w) -> (B, h, w).
        memory["memory_mask"] = ops.repeat(columns[:, None], features.shape[1], axis=1)
    word = None
    for lstm in numbered(layers, "encoder"):
        hidden, word, _ = lstm(hidden, mask=columns)
    return word, memory


def _decode(layers, decoder_token_ids, word, memory):
    """The outputs of `_read` after each token, and the last states.

    Args:
        layers: Layers by name.
        decoder_token_ids: y_0 … y_{T-1}, (B, T).
        word: h_W, the input before them, (B, U).
        memory: From `_encode`.
    """
    hidden = layers["embedding"](decoder_token_ids)
    hidden = ops.concatenate([ops.expand_dims(word, 1), hidden], axis=1)
    states = []
    for lstm in numbered(layers, "decoder"):
        hidden, *state = lstm(hidden)
        states.append(state)
    outputs, projected_memory = _read(layers, hidden[:, 1:], memory)
    state = {**memory, "projected_memory": projected_memory, **layer_states(states)}
    return outputs, state


def _read(layers, hidden, memory):
    """Logits and attention from the states h', (B, T, U), and W̃ v for the next step."""
    glimpses, scores, projected_memory = layers["attention"](
        hidden,
        memory["memory"],
        projected_key=memory.get("projected_memory"),
        padding_mask=memory.get("memory_mask"),
        return_attention_scores=True,
        return_projected_key=True,
    )
    logits = layers["logits"](ops.concatenate([hidden, glimpses], axis=-1))
    scores = ops.expand_dims(scores, 1)
    return {"logits": logits, "attention_scores": scores}, projected_memory


@keras.saving.register_keras_serializable("keras_attn")
class ShowAttendRead(Functional):
    """The functional model of `build_show_attend_read`, with incremental decoding."""

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for reading character by character.

        The states of the decoder's layers, `h_0`, `c_0`, `h_1`, …, (B, U), change with
        each step. The map `memory` (B, h, w, C), `projected_memory` (B, h, w, A) and,
        with widths, `memory_mask` (B, h, w) stay the same.

        Args:
            max_length: Has no effect: the state of an LSTM has a fixed size.
        """
        layers = by_name(self.layers)

        def prefill(inputs):
            word, memory = _encode(layers, inputs)
            outputs, state = _decode(layers, inputs["decoder_token_ids"], word, memory)
            return outputs["logits"][:, -1], state

        def step(token_ids, state):
            hidden = layers["embedding"](token_ids)
            hidden, after = step_of_cells(numbered(layers, "decoder"), hidden, state)
            outputs, _ = _read(layers, ops.expand_dims(hidden, 1), state)
            return outputs["logits"][:, 0], after

        inputs = inputs_like(self.input)
        return build_pair(inputs, prefill, step, prompt="decoder_token_ids")

"""Show and Tell: an LSTM describes an image from a single vector of features.

    x_{-1} = W_x mean_i a_i               `image_embedding`, of the features a_i
    x_t = W_e y_t                         `word_embedding`
    h_t = LSTM(x_t, h_{t-1})              `decoder`, from a state of zeros
    p(y_{t+1}) = softmax(W_o h_t)         `logits`: before the softmax

So the image is read once, before the first word. In lectures it is read at every step
(`image_as="context"`), like the context of a translator without attention:

    h_0, m_0 = tanh(W_h a), tanh(W_m a)   `initial_state`, `initial_cell`
    c = x_{-1}                            `image_embedding`
    h_t = LSTM([x_t; c], h_{t-1})         `decoder`

Recurrent layers: `models/parts/decoders/recurrent_parts.py`; token by token:
`models/parts/decoders/pair_builders.py`.

Legend: B batch, P locations, C channels, T length, V vocabulary, E width of the words,
U units. m is the LSTM's cell.
Layers: `backbone` (of a model with one), `places`, `image_vector`, `image_embedding`,
`word_embedding`, `word_dropout`, `decoder`, `hidden_dropout`, `logits`, and in the
second form `initial_state`, `initial_cell`. `incremental()` finds them by these names.
"""

from typing import Literal

import keras
from keras import ops
from keras.layers import GlobalAveragePooling1D, LSTMCell

from keras_attn.checks.argument_types import Probability
from keras_attn.decoding import IncrementalPair
from keras_attn.layers import Dense, Dropout, Embedding
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.backbones.feature_grid import places_and_text
from keras_attn.models.parts.decoders.recurrent_parts import (
    captioner_pair,
    recurrent_layer,
)
from keras_attn.models.parts.functional import Functional, by_name
from keras_attn.models.parts.heads import logits_layer

VARIANTS = {
    # Vinyals et al. 2015, section 4.3.1: 512 for the embeddings and the LSTM, and
    # dropout. The dropout rate, the vocabulary, and the features of Inception-v3, which
    # replaced the paper's network, are from the authors' code (im2txt). 15,448,288
    # parameters without the network; the paper reports no count.
    "base": {
        "vocabulary_size": 12_000,
        "embedding_dim": 512,
        "hidden_dim": 512,
        "dropout": 0.3,
        "grid_size": 8,
        "feature_dim": 2048,
    }
}
CARDS = model_cards(
    "caption_show_and_tell",
    {"base": None},
    scores=[
        scored("COCO BLEU-4", "beam of 20", "table 1", {"base": 27.7}),
        scored("COCO CIDEr", "beam of 20", "table 1", {"base": 85.5}),
    ],
    title="Show and Tell: one vector of the image, then an LSTM",
    paper="Vinyals et al. 2015, arXiv:1411.4555",
    **tasks.captioning(features=tasks.MAP),
)


@registered(CARDS, VARIANTS)
def build_caption_show_and_tell(
    variant: str = "base",
    *,
    backbone: keras.Model | None = None,
    grid_size: int | tuple[int, int] = FROM_VARIANT,
    feature_dim: int = FROM_VARIANT,
    vocabulary_size: int = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    dropout: Probability = FROM_VARIANT,
    image_as: Literal["first_word", "context"] = "first_word",
    name: str = "show_and_tell",
) -> "ShowAndTell":
    """A captioner without attention, which sees the image as a single vector.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        backbone: A functional Keras model from images to a map, which becomes part of
            the model. None = the model takes precomputed features.
        grid_size: Rows and columns of the features, one number or two; ignored if there
            is a backbone.
        feature_dim: C, the channels of the features; ignored if there is a backbone.
        vocabulary_size: V.
        embedding_dim: E.
        hidden_dim: U.
        dropout: Probability of dropping an input or an output of the LSTM.
        image_as: "first_word", the paper's form, or "context", the form common in
            lectures.
        name: Name of the model.

    Returns:
        A model from `features` (B, rows, columns, C), or with a backbone `images`
        (B, H, W, channels), and `decoder_token_ids` (B, T) to logits (B, T, V).

    Raises:
        TypeError: If `backbone` is not a functional Keras model.
        ValueError: If `image_as` is unknown, `backbone` does not output a map, or a
            size is not a positive integer.

    Reference:
        Vinyals, Toshev, Bengio, Erhan 2015, "Show and Tell: A Neural Image Caption
        Generator" (arXiv:1411.4555).
    """
    inputs, places = places_and_text(
        ["decoder_token_ids"], backbone, grid_size, feature_dim
    )
    layers = [
        GlobalAveragePooling1D(name="image_vector"),
        Dense(embedding_dim, name="image_embedding"),
        Embedding(vocabulary_size, embedding_dim, name="word_embedding"),
        Dropout(dropout, name="word_dropout"),
        recurrent_layer(LSTMCell(hidden_dim, name="decoder_cell"), "decoder"),
        Dropout(dropout, name="hidden_dropout"),
        logits_layer(vocabulary_size, "logits"),
    ]
    if image_as == "context":
        layers += [
            Dense(hidden_dim, activation="tanh", name="initial_state"),
            Dense(hidden_dim, activation="tanh", name="initial_cell"),
        ]
    layers = by_name(layers)
    state = _look(layers, places)
    logits, _ = _tell(layers, inputs["decoder_token_ids"], state)
    return ShowAndTell(inputs=inputs, outputs=logits, name=name)


def _look(layers, places):
    """The h and m (B, U) before the first word, and in the second form c (B, E)."""
    vector = layers["image_vector"](places)
    image = layers["image_embedding"](vector)
    if "initial_state" in layers:
        return {
            "decoder_state": layers["initial_state"](vector),
            "cell_state": layers["initial_cell"](vector),
            "context": image,
        }
    image = ops.expand_dims(layers["word_dropout"](image), 1)
    _, h, m = layers["decoder"](image)
    return {"decoder_state": h, "cell_state": m}


def _tell(layers, decoder_token_ids, state):
    """Logits (B, T, V) of the words after these, and h and m after the last."""
    words = layers["word_dropout"](layers["word_embedding"](decoder_token_ids))
    if "context" in state:
        # Repeated for every word, (B, T, E); T is unknown when the graph is built.
        context = ops.expand_dims(state["context"], 1) + ops.zeros_like(words[..., :1])
        words = ops.concatenate([words, context], axis=-1)
    before = [state["decoder_state"], state["cell_state"]]
    if words.shape[1] == 1:
        # One step without a loop, which LiteRT would have to run.
        hidden, (h, m) = layers["decoder"].cell(words[:, 0], before)
        hidden = ops.expand_dims(hidden, 1)
    else:
        hidden, h, m = layers["decoder"](words, initial_state=before)
    logits = layers["logits"](layers["hidden_dropout"](hidden))
    return logits, {"decoder_state": h, "cell_state": m}


@keras.saving.register_keras_serializable("keras_attn")
class ShowAndTell(Functional):
    """The model of `build_caption_show_and_tell`, with incremental decoding."""

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for decoding word by word.

        The state is `decoder_state` and `cell_state` (B, U), and `context` (B, E)
        where the image is read at every step.

        Args:
            max_length: Has no effect: the state of an LSTM has a fixed size.
        """
        return captioner_pair(self, _look, _tell)

"""Show, attend and tell: a captioner that looks at one part of the image per word.

    h_0, m_0 = f_h(mean_i a_i), f_m(…)            `initial_hidden`, `initial_state`,
                                                  `initial_cell`
    e_ti = vᵀ tanh(W h_{t-1} + U a_i + b)         `decoder`: score of location i
    α_t = softmax(e_t)                            `decoder`: attention
    β_t = σ(w_β h_{t-1} + b_β)                    `decoder`: gate
    z_t = β_t Σ_i α_ti a_i                        `decoder`: context, soft attention
    z_t = β_t a_s, s ~ α_t                        the same in training, hard attention
    h_t = LSTM([E y_{t-1}; z_t], h_{t-1})         `word_embedding`, `decoder`
    r_t = E y_{t-1} + L_h h_t + L_z z_t           `hidden_readout`, `context_readout`
    p(y_t) = softmax(L_o r_t)                     `logits`: before the softmax

    loss = -log p(y) + λ Σ_i (1 - Σ_t α_ti)²      `attention_objective`
           - λ_r (log p(y|s) - b) log p(s)        further terms of hard attention, b a
           - λ_e Σ_t H(α_t)                       moving average of log p(y|s)

The forward pass is `_look`, then `_decode` below; e, α, β, z and h are computed by
`layers/recurrent/attention_rnn.py` with the score of
`layers/attention/additive_attention.py`, s by `hard_attention_rnn.py`, and the second
term of the loss by `layers/recurrent/attention_objective.py`.

Legend: B batch, P locations of the grid, C channels, T length, V vocabulary, E width of
the words, U units. m is the LSTM's cell.
Layers: `backbone` (of a model with one), `places`, `image_vector`, `initial_hidden`,
`initial_dropout`, `initial_state`, `initial_cell`, `word_embedding`, `decoder`,
`attention_objective`, `hidden_dropout`, `hidden_readout`, `context_readout`, `readout`,
`readout_dropout`, `logits`. `incremental()` finds them by these names.
"""

import functools
from typing import Any, Literal

import keras
from keras import ops
from keras.layers import Add, GlobalAveragePooling1D, LSTMCell

from keras_attn.checks.argument_types import Probability, Seed
from keras_attn.checks.arguments import check_choice
from keras_attn.decoding import IncrementalPair
from keras_attn.kernels.replicas import mean_loss
from keras_attn.layers import (
    AdditiveAttention,
    AttentionObjective,
    AttentionRNN,
    Dense,
    DotProductAttention,
    Dropout,
    Embedding,
    HardAttentionRNN,
)
from keras_attn.layers.attention.dot_product_attention import SCORES, Score
from keras_attn.layers.recurrent.hard_attention_rnn import Inference
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.backbones.feature_grid import places_and_text
from keras_attn.models.parts.decoders.recurrent_parts import (
    captioner_pair,
    decoder_changes,
)
from keras_attn.models.parts.functional import Functional, by_name
from keras_attn.models.parts.heads import logits_layer

VARIANTS = {
    # Xu et al. 2015, section 4.3: the grid of VGG, and 10,000 words. The other sizes
    # are for COCO, from the authors' code (evaluate_coco.py and capgen.py): there f_att
    # and the first layer of f_h and f_m are as wide as the features, and dropout is
    # 0.5. The code's additional layer of f_att is left out, as in the paper. 35,070,282
    # parameters, including the baseline of hard attention; the paper reports no count.
    "base": {
        "vocabulary_size": 10_000,
        "embedding_dim": 512,
        "hidden_dim": 1800,
        "attention_dim": 512,
        "initial_dim": 512,
        "dropout": 0.5,
        "grid_size": 14,
        "feature_dim": 512,
    }
}
CARDS = model_cards(
    "caption_show_attend_tell",
    {"base": None},
    scores=[
        scored("COCO BLEU-4", "soft attention", "table 1", {"base": 24.3}),
        scored("COCO BLEU-4", "hard attention", "table 1", {"base": 25.0}),
    ],
    title="Show, Attend and Tell: an LSTM that attends to the image for every word",
    paper="Xu et al. 2015, arXiv:1502.03044",
    **tasks.captioning(features=tasks.MAP),
)


@registered(CARDS, VARIANTS)
def build_caption_show_attend_tell(
    variant: str = "base",
    *,
    backbone: keras.Model | None = None,
    grid_size: int | tuple[int, int] = FROM_VARIANT,
    feature_dim: int = FROM_VARIANT,
    vocabulary_size: int = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    attention_dim: int = FROM_VARIANT,
    initial_dim: int = FROM_VARIANT,
    dropout: Probability = FROM_VARIANT,
    attention: Literal["soft", "hard"] = "soft",
    score: Literal["additive"] | Score = "additive",
    coverage_weight: float = 1.0,
    reinforce_weight: float = 0.1,
    entropy_weight: float = 0.01,
    mean_rate: Probability = 0.5,
    inference: Inference = "mean",
    seed: Seed = None,
    return_attention_scores: bool = False,
    name: str = "show_attend_tell",
) -> "ShowAttendTell":
    """A captioner whose LSTM attends to the locations of a grid of features.

    `compile` takes a loss of the logits that is a mean over words, such as
    `SmoothedCrossEntropy`; the model adds the loss of the attention, see
    `ShowAttendTell`.

    Unlike in the paper's equation 7, L_h has a bias. The authors' code puts a tanh
    between r_t and L_o, which is left out here.

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
        attention_dim: Units of f_att, the additive score.
        initial_dim: Units of the first layer of f_h and f_m, which they share.
        dropout: Probability of dropping a unit of that layer, of h_t and of r_t before
            the logits.
        attention: "soft", or "hard", which learns by sampling locations (REINFORCE).
        score: `"additive"`, the paper's f_att, `"dot"`, `"scaled_dot"`, `"general"` or
            `"linear"`. The two dot products need features as wide as the state, U = C.
        coverage_weight: λ above; 0 leaves the term out.
        reinforce_weight: λ_r of hard attention, section 4.1; 0.1 in the authors' code.
        entropy_weight: λ_e of hard attention; the paper gives no value.
        mean_rate: Probability that hard attention averages over the locations of an
            image in training.
        inference: What hard attention does after training: "mean" averages, which gives
            the expected context; "most_probable" takes the most probable location.
            Neither samples, so a caption depends only on the weights.
        seed: Seed for sampling locations.
        return_attention_scores: Whether the model also returns the attention.
        name: Name of the model.

    Returns:
        A model from `features` (B, rows, columns, C), or with a backbone `images`
        (B, H, W, channels), and `decoder_token_ids` (B, T) to logits (B, T, V); with
        `return_attention_scores=True` to a dictionary of `logits` and
        `attention_scores`, (B, 1, T, P), the locations row by row.

    Raises:
        TypeError: If `backbone` is not a functional Keras model.
        ValueError: If `attention`, `score` or `inference` is unknown, `backbone` does
            not output a map, a number is out of range, or `score` needs other widths.

    Reference:
        Xu et al. 2015, "Show, Attend and Tell: Neural Image Caption Generation with
        Visual Attention" (arXiv:1502.03044).
    """
    check_choice("score", score, ("additive", *SCORES))
    if score == "additive":
        f_att = AdditiveAttention(attention_dim, use_bias=True, name="attention")
    else:
        f_att = DotProductAttention(score, name="attention")
    # `features` (B, h, w, C), or `images` through the backbone; as locations, the
    # output of the layer `places`, (B, h·w, C).
    inputs, locations = places_and_text(
        ["decoder_token_ids"], backbone, grid_size, feature_dim
    )
    decoder, options = AttentionRNN, {}
    if attention == "hard":
        decoder = HardAttentionRNN
        options = {"mean_rate": mean_rate, "inference": inference, "seed": seed}
    layers = by_name(
        [
            GlobalAveragePooling1D(name="image_vector"),
            Dense(initial_dim, activation="relu", name="initial_hidden"),
            Dropout(dropout, name="initial_dropout"),
            Dense(hidden_dim, activation="tanh", name="initial_state"),
            Dense(hidden_dim, activation="tanh", name="initial_cell"),
            Embedding(vocabulary_size, embedding_dim, name="word_embedding"),
            decoder(
                LSTMCell(hidden_dim, name="decoder_cell"),
                f_att,
                gate=True,
                **options,
                name="decoder",
            ),
            AttentionObjective(
                coverage_weight=coverage_weight,
                reinforce_weight=reinforce_weight,
                entropy_weight=entropy_weight,
                name="attention_objective",
            ),
            Dropout(dropout, name="hidden_dropout"),
            Dense(embedding_dim, name="hidden_readout"),
            Dense(embedding_dim, use_bias=False, name="context_readout"),
            Add(name="readout"),
            Dropout(dropout, name="readout_dropout"),
            logits_layer(vocabulary_size, "logits"),
        ]
    )
    outputs, decoded = _decode(
        layers,
        inputs["decoder_token_ids"],
        _look(layers, locations),
        # Also if only the loss needs them. Keras lets a layer that is called again,
        # as in decoding, return fewer tensors than the first time, but not more.
        return_attention_scores=True,
    )
    if return_attention_scores:
        outputs = {"logits": outputs, "attention_scores": decoded["attention_scores"]}
    return ShowAttendTell(inputs=inputs, outputs=outputs, name=name)


def _look(layers, locations):
    """State before the first word: h_0 and m_0 (B, U), and the locations (B, P, C)."""
    hidden = layers["initial_hidden"](layers["image_vector"](locations))
    hidden = layers["initial_dropout"](hidden)
    return {
        "decoder_state": layers["initial_state"](hidden),
        "cell_state": layers["initial_cell"](hidden),
        "memory": locations,
    }


def _decode(layers, decoder_token_ids, state, **attention_options):
    """Logits (B, T, V) of the words after these, and the outputs of the decoder."""
    embedded = layers["word_embedding"](decoder_token_ids)
    decoded = layers["decoder"](
        embedded,
        state["memory"],
        [state["decoder_state"], state["cell_state"]],
        projected_memory=state.get("projected_memory"),
        **attention_options,
    )
    # Unchanged: this only puts the layer, with its weights and the baseline, into the
    # model.
    contexts = layers["attention_objective"](decoded["contexts"])
    hidden = layers["hidden_dropout"](decoded["states"])
    readout = layers["readout"](
        [
            embedded,
            layers["hidden_readout"](hidden),
            layers["context_readout"](contexts),
        ]
    )
    return layers["logits"](layers["readout_dropout"](readout)), decoded


def _tell(layers, decoder_token_ids, state):
    """Logits (B, T, V) of the words after these, and h and m after the last."""
    logits, decoded = _decode(layers, decoder_token_ids, state)
    # The first time, also U a_i + b, computed once for all words.
    return logits, decoder_changes(layers, decoded, state)


@keras.saving.register_keras_serializable("keras_attn")
class ShowAttendTell(Functional):
    """The model of `build_caption_show_attend_tell`: its loss, and decoding.

    `compile` takes the loss of the logits, -log p(y). The model adds
    `coverage_weight · Σ_i (1 - Σ_t α_ti)²`, and for hard attention the terms of
    REINFORCE, see `AttentionObjective`, summed over the captions of a batch and divided
    by its number of words. A word counts if
    its sample weight is above 0; without sample weights (B, T) all T do. With a loss
    that is the mean over words, the sum is therefore the paper's objective divided by
    the number of words of a caption. Hard attention needs labels (B, T), the words as
    integers, because it learns from their probability.

    `fit` logs the coverage term without its weight as `coverage`. `evaluate` reports
    only the loss of the logits: only a call with `training=True` returns what the
    other terms need: a dictionary of `outputs` (the usual return value),
    `attention_scores` and, of hard attention, `places`, both (B, 1, T, P).

    Reference:
        Xu et al. 2015, sections 4.1 and 4.2.1 (arXiv:1502.03044).
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._coverage = keras.metrics.Mean(name="coverage")

    # Not an attribute, which Keras would track, and save twice.
    @functools.cached_property
    def _training_model(self) -> Any:
        """The graph with the outputs that the loss needs; None if it needs none."""
        layers = by_name(self.layers)
        is_hard = isinstance(layers["decoder"], HardAttentionRNN)
        if not (is_hard or layers["attention_objective"].coverage_weight):
            return None
        logits, decoded = _decode(
            layers,
            self.input["decoder_token_ids"],
            _look(layers, layers["places"].output),
            return_attention_scores=True,
        )
        probabilities = decoded["attention_scores"]
        outputs = {"outputs": logits, "attention_scores": probabilities}
        if "places" in decoded:
            outputs["places"] = decoded["places"]
        if isinstance(self.output, dict):  # Built to return the attention.
            outputs["outputs"] = {"logits": logits, "attention_scores": probabilities}
        return keras.Model(self.input, outputs)

    def call(self, inputs, training=None, mask=None):
        """The outputs; in training, also what the loss needs."""
        if training and self._training_model is not None:
            return self._training_model(inputs, training=True)
        return super().call(inputs, training=training, mask=mask)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The loss of `compile`, and in training the loss of attention; see the class.

        Args:
            x: The inputs.
            y: The labels.
            y_pred: What the model returned.
            sample_weight: (B, T), None, or a dictionary with the keys of the labels.
            training: Whether the model is being trained.

        Returns:
            A scalar.

        Raises:
            ValueError: If attention is hard and labels (B, T) are missing.
        """
        outputs, terms = _parts(y_pred)
        loss = super().compute_loss(x, y, outputs, sample_weight, training)
        if terms is None:
            return loss
        total, count = self._attention_loss(y, outputs, terms, sample_weight)
        return loss + mean_loss(ops.sum(total), count)

    def _attention_loss(self, y, outputs, terms, sample_weight):
        """The loss of attention for every row (B,), and the number of words."""
        layers = by_name(self.layers)
        probabilities = terms["attention_scores"][:, 0]
        word_weights = _word_weights(sample_weight, probabilities)
        options = {}
        if "places" in terms:
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs
            options = {
                "places": terms["places"][:, 0],
                "log_likelihood": _log_likelihood(_labels(y), logits, word_weights),
            }
        losses = layers["attention_objective"].compute_losses(
            probabilities, word_weights, **options
        )
        self._coverage.update_state(losses["coverage"])
        return losses["total"], ops.sum(word_weights)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The metrics of `compile`, and in training the coverage."""
        outputs, terms = _parts(y_pred)
        results = super().compute_metrics(x, y, outputs, sample_weight)
        if terms is None:
            return {n: x for n, x in results.items() if n != self._coverage.name}
        return results

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for decoding word by word.

        The state is `decoder_state` and `cell_state` (B, U), which change with each
        word, `memory` (B, P, C) and `projected_memory`, which do not.

        Args:
            max_length: Has no effect: the state of an LSTM has a fixed size.
        """
        return captioner_pair(self, _look, _tell)


def _parts(y_pred):
    """The usual return value, and in training the whole dictionary."""
    if isinstance(y_pred, dict) and "outputs" in y_pred:
        return y_pred["outputs"], y_pred
    return y_pred, None


def _labels(y):
    """The words (B, T): the labels, or the labels named `logits`."""
    y = y.get("logits") if isinstance(y, dict) else y
    if y is None or len(y.shape) != 2:
        raise ValueError(
            "`y` must be the words (batch, length) as integers: hard attention learns "
            f"from their probability. Received: y={y!r}"
        )
    return ops.cast(y, "int32")


def _word_weights(sample_weight, probabilities):
    """1 for words that count, 0 for others, (B, T), float32."""
    if isinstance(sample_weight, dict):
        sample_weight = sample_weight.get("logits")
    ones = ops.ones_like(probabilities[..., 0])
    if sample_weight is None:
        return ones
    is_real = ops.cast(sample_weight, ones.dtype) > 0
    return ones * ops.cast(is_real, ones.dtype)


def _log_likelihood(labels, logits, word_weights):
    """The log-likelihood of every caption, (B,)."""
    losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return -ops.sum(losses * word_weights, axis=-1)

"""DALL·E: a Transformer that continues a caption with the codes of an image.

    caption (256 positions) and codes (32 × 32) as one sequence
    -> embeddings -> causal blocks with sparse masks -> norm -> logits

    build_dalle       captions and codes -> logits of the next word and the next code

Embeddings, (B, S, D). The caption takes L positions p: its words, moved to the front,
and then a padding token of its own for each position, which is attended to as a word
is. W is the number of columns of codes.

    word p          E[word_p] + P[p], or after the last word N[p] + P[p]
    code p          F[code_p] + Q[p // W] + R[p % W]

Masks, boolean (1, S, S): position t attends to position s ≤ t if s < L, a place of the
caption, or, with the places i = t - L and j = s - L in the image, if

    row             j ≥ i - W
    column          j % W = i % W
    convolutional   j // W ≥ i // W - r and |j % W - i % W| ≤ r, r = `window_size` // 2

`attention_of_block` says which block has which of the three masks. A block is pre-norm,
x = x + drop(attention(norm(x))), then x = x + drop(FFN(norm(x))), without
cross-attention, with GPT's attention and FFN (`models/gpt.py`) under its mask.

Images for a caption: `generate_images` in `parts/text_to_image.py`. Codes come from a
discrete VAE, `models/dvae.py`, which also draws them. `incremental()` gives the same
forward pass with key/value caches and GPT's state: `parts/decoders/incremental.py`.

This file has more than 400 lines because the loss and the decoding need its layers.

Legend: B batch, T words, L positions of a caption, U codes, P codes of a whole image, S
= L + U, K length of the caches, D width, V vocabulary of words, C of codes.
Layers: `caption_embedding`, `image_embedding`, `embeddings_dropout`, `row_mask`,
`column_mask`, `convolutional_mask`, `block_0`, …, `final_norm`, `text_logits`,
`image_logits`.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.checks.arguments import check_pair
from keras_attn.decoding import IncrementalPair
from keras_attn.docstrings.descriptions import described_as
from keras_attn.kernels.replicas import mean_loss
from keras_attn.layers import (
    CaptionEmbedding,
    ImageCodeEmbedding,
    TextImageMask,
    TransformerDecoderBlock,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import normal
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, block_options, block_sizes
from keras_attn.models.parts.bert_encoder import bert_encoder
from keras_attn.models.parts.decoders import incremental
from keras_attn.models.parts.decoders.pair_builders import build_pair
from keras_attn.models.parts.functional import (
    Functional,
    by_name,
    numbered,
    sequence_inputs,
)
from keras_attn.models.parts.heads import logits_layer
from keras_attn.models.parts.own_loss import adds_compiled_loss
from keras_attn.ops import gelu_tanh, token_positions, tokens_in_order
from keras_attn.ops.image_masks import IMAGE_ATTENTIONS, ImageAttention

VARIANTS = {
    # Ramesh et al. 2021, section 2.2 and appendix B.1: 62 heads of 64 units.
    "12b": block_sizes(
        num_layers=64,
        hidden_dim=3968,
        num_heads=62,
        text_vocabulary_size=16_384,
        image_vocabulary_size=8192,
        text_length=256,
        grid_size=(32, 32),
        window_size=11,
    ),
    # Not published: what `examples/dalle_emoji.py` trains in minutes on a CPU, with a
    # discrete VAE of 8 × 8 codes of 128. Four blocks are the fewest with every mask
    # in the paper's places.
    "small": block_sizes(
        num_layers=4,
        hidden_dim=128,
        num_heads=4,
        text_vocabulary_size=600,
        image_vocabulary_size=128,
        text_length=32,
        grid_size=(8, 8),
        window_size=5,
    ),
}
CARDS = model_cards(
    "dalle_{variant}",
    {"12b": 12_000_000_000, "small": None},
    notes={
        "12b": "a caption of 256 tokens and 32 × 32 codes",
        "small": "not published; 32 tokens and 8 × 8 codes, for small images",
    },
    training={
        "12b": Training(
            "250 million pairs",
            "section 2.3, appendix B.2",
            images=430_000 * 1024,
            hardware="v100",
            devices=1024,
        )
    },
    title="DALL·E, a Transformer over a caption and the codes of its image",
    paper="Ramesh et al. 2021, arXiv:2102.12092",
    task="text to image",
    inputs={
        "token_ids": "(B, T) int32, the caption",
        "padding_mask": tasks.PADDING_MASK,
        "decoder_token_ids": "(B, U) int32, the codes of the image, row by row",
    },
    outputs={
        "text_logits": "(B, T, V) float32, of the next word at every position",
        "image_logits": "(B, U, C) float32, of each code, given those before it",
    },
)


@registered(CARDS, VARIANTS)
@described_as(bert_encoder)
def build_dalle(
    variant: str = "12b",
    *,
    text_vocabulary_size: int = FROM_VARIANT,
    image_vocabulary_size: int = FROM_VARIANT,
    text_length: int = FROM_VARIANT,
    grid_size: int | tuple[int, int] = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    window_size: int = FROM_VARIANT,
    image_weight: float = 7.0,
    activation: Activation = gelu_tanh,
    layer_norm_epsilon: Epsilon = 1e-5,
    dropout: Probability = 0.0,
    attention_dropout: Probability = 0.0,
    name: str = "dalle",
) -> "DALLE":
    """Embeddings of words and of codes, then pre-norm blocks with sparse masks.

    A caption always takes `text_length` positions; after its last word each position
    has a padding token of its own. The last one predicts the first code. Words and
    codes have separate embeddings and separate logits, whose matrices are not tied:
    the 12b model has 12,292,808,448 parameters, without its logits 12,195,290,880.

    `fit` needs no labels and no loss in `compile`: the model has its own.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        text_vocabulary_size: V.
        image_vocabulary_size: C, the codes of the discrete VAE.
        text_length: L.
        grid_size: Rows and columns of the codes of an image, one number or two.
        hidden_dim: D, a multiple of `num_heads`.
        window_size: Rows and columns that the last block attends to, an odd number.
        image_weight: Weight of the codes in the loss; the words' is 1.
        name: Name of the model.

    Returns:
        A model from `token_ids` and `padding_mask`, each (B, T) with T ≤ L, and
        `decoder_token_ids` (B, U) with U ≤ P to a dictionary of `text_logits`
        (B, T, V), of the word after each word, and `image_logits` (B, U, C), of each
        code given the caption and the codes before it.

    Raises:
        ValueError: If `window_size` is even, `image_weight` is negative, or a size is
            not a positive integer.

    Reference:
        Ramesh et al. 2021, "Zero-Shot Text-to-Image Generation", section 2.2 and
        appendix B (arXiv:2102.12092).
    """
    if not 0 <= image_weight < math.inf:
        raise ValueError(
            "`image_weight` must be a number of at least 0. "
            f"Received: image_weight={image_weight}"
        )
    grid_size = check_pair("grid_size", grid_size)
    initializer = normal(0.02)
    residual = normal(0.02 / math.sqrt(2 * num_layers))
    layers = [
        CaptionEmbedding(
            text_vocabulary_size,
            hidden_dim,
            text_length,
            embeddings_initializer=initializer,
            name="caption_embedding",
        ),
        ImageCodeEmbedding(
            image_vocabulary_size,
            hidden_dim,
            grid_size,
            embeddings_initializer=initializer,
            name="image_embedding",
        ),
        Dropout(dropout, name="embeddings_dropout"),
    ]
    for kind in IMAGE_ATTENTIONS:
        options = {"window_size": window_size, "name": f"{kind}_mask"}
        layers.append(TextImageMask(kind, text_length, grid_size[1], **options))
    for index in range(num_layers):
        block = TransformerDecoderBlock(
            num_heads,
            mlp_dim,
            norm_first=True,
            **block_options(activation, layer_norm_epsilon, dropout, attention_dropout),
            kernel_initializer=initializer,
            output_initializer=residual,
            name=f"block_{index}",
        )
        layers.append(block)
    layers.append(LayerNormalization(epsilon=layer_norm_epsilon, name="final_norm"))
    options = {"use_bias": False, "kernel_initializer": initializer}
    layers += [
        logits_layer(text_vocabulary_size, "text_logits", **options),
        logits_layer(image_vocabulary_size, "image_logits", **options),
    ]
    layers = by_name(layers)
    inputs = sequence_inputs("token_ids", "padding_mask", "decoder_token_ids")
    caption = layers["caption_embedding"](inputs["token_ids"], inputs["padding_mask"])
    image = layers["image_embedding"](inputs["decoder_token_ids"])
    hidden = ops.concatenate([caption, image], axis=1)  # (B, L + U, D)
    positions = _count(hidden[:1, :, 0])  # The same in all rows.
    hidden, _ = _features(layers, hidden, positions, positions)
    # Position p predicts token p + 1. Words are predicted where they stand.
    words = ops.expand_dims(token_positions(inputs["padding_mask"]), -1)
    words = ops.take_along_axis(hidden[:, :text_length], words, axis=1)
    outputs = {
        "text_logits": layers["text_logits"](words),
        "image_logits": layers["image_logits"](hidden[:, text_length - 1 : -1]),
    }
    model = DALLE(inputs=inputs, outputs=outputs, name=name)
    model.image_weight = image_weight
    return model


def attention_of_block(index: int, num_layers: int) -> ImageAttention:
    """The kind of attention of a block to the image.

    In the paper's numbers, from 1: the last block is convolutional, blocks 2, 6, 10, …
    attend to columns, and all others to rows.

    Args:
        index: Index of the block, from 0.
        num_layers: Number of blocks.

    Returns:
        `"row"`, `"column"` or `"convolutional"`.

    Reference:
        Ramesh et al. 2021, appendix B.1 (arXiv:2102.12092).
    """
    if index == num_layers - 1:
        return "convolutional"
    return "column" if index % 4 == 1 else "row"


def _count(tensor):
    """0, 1, 2, … along axis 1, (B, T), for `arange` without a known length."""
    return ops.cumsum(ops.ones_like(tensor, dtype="int32"), axis=1) - 1


def _features(layers, hidden, query_positions, key_positions, **options):
    """Features after the last norm, and the keys and values of every block.

    Args:
        layers: Layers by name.
        hidden: Embeddings of the queries, (B, T, D).
        query_positions: Positions in the sequence, (B, T).
        key_positions: Positions of the keys, (B, S), the cached ones first.
        **options: In a step, the arguments `caches`, for each block a pair, and
            `padding_mask`, (B, S), of the blocks.
    """
    blocks = numbered(layers, "block")
    caches = options.pop("caches", [None] * len(blocks))
    kinds = [attention_of_block(index, len(blocks)) for index in range(len(blocks))]
    masks = {
        kind: layers[f"{kind}_mask"](query_positions, key_positions)
        for kind in dict.fromkeys(kinds)
    }
    hidden, entries = layers["embeddings_dropout"](hidden), []
    for block, kind, cache in zip(blocks, kinds, caches, strict=True):
        # Without a `cache_index` the cache is only read: `decoding.next_state` writes.
        hidden, entry = block(
            hidden,
            attention_mask=masks[kind],
            cache=cache,
            return_cache=True,
            **options,
        )
        entries.append(entry)
    return layers["final_norm"](hidden), entries


@keras.saving.register_keras_serializable("keras_attn")
class DALLE(Functional):
    """The model of `build_dalle`: its loss, and decoding with caches.

    The loss is `(text + w · image) / (1 + w)`, where `text` is the mean of -log p over
    the words after the first one, `image` the mean over the codes, and w the
    `image_weight` of the builder. `fit` and `evaluate` log `text_loss` and
    `image_loss`. The means are over the whole batch, also on several devices. If
    `compile` has a loss, for labels with the names of outputs, it is added. Sample
    weights (B,) weight the examples.

    `decoding.generate(dalle, {"token_ids": ids, "padding_mask": mask}, P,
    strategy=Sample())` continues captions with codes.

    Reference:
        Ramesh et al. 2021, section 2.2 (arXiv:2102.12092).
    """

    image_weight: float = 7.0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._text_loss = keras.metrics.Mean(name="text_loss")
        self._image_loss = keras.metrics.Mean(name="image_loss")

    def get_config(self) -> dict[str, Any]:
        """The graph, and the weight of the codes in the loss."""
        return {**super().get_config(), "image_weight": self.image_weight}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None):
        """The model of a configuration."""
        graph = dict(config)
        weight = graph.pop("image_weight", cls.image_weight)
        model = super().from_config(graph, custom_objects)
        model.image_weight = weight
        return model

    @property
    def max_length(self) -> int:
        """L + P, the positions of a caption and of the codes of a whole image."""
        layers = by_name(self.layers)
        return layers["caption_embedding"].max_length + self.image_length

    @property
    def image_length(self) -> int:
        """P, the number of codes of a whole image."""
        return by_name(self.layers)["image_embedding"].max_length

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of the codes of an image."""
        return by_name(self.layers)["image_embedding"].grid_size

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The weighted mean of the losses of words and codes; see the class.

        Args:
            x: The inputs.
            y: Labels, only for a loss given to `compile`.
            y_pred: What the model returned.
            sample_weight: (B,), one weight per example, or None.
            training: Whether the model is being trained.

        Returns:
            A scalar.

        Raises:
            ValueError: If `compile` has a loss and labels are missing.
        """
        inputs: Any = x
        losses = {
            "text": _text_losses(inputs["token_ids"], inputs["padding_mask"], y_pred),
            "image": _image_losses(inputs["decoder_token_ids"], y_pred),
        }
        means = {}
        for kind, (values, counted) in losses.items():
            if sample_weight is not None:
                weights = ops.reshape(ops.cast(sample_weight, counted.dtype), (-1, 1))
                counted = counted * weights
            metric = self._text_loss if kind == "text" else self._image_loss
            metric.update_state(values, sample_weight=counted)
            # 0 if no text has a second word, or all examples have a weight of 0.
            means[kind] = mean_loss(ops.sum(values * counted), ops.sum(counted))
        loss = means["text"] + self.image_weight * means["image"]
        loss = loss / (1.0 + self.image_weight)
        if adds_compiled_loss(self, y):
            loss += super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for decoding code by code; `prefill` reads a caption.

        The state is the same as GPT's (`keras_attn.models.parts.decoders.incremental`).
        A caption occupies L slots of the caches, with any number of words.

        Args:
            max_length: Has no effect: the caches hold a caption and a whole image.
        """
        layers = by_name(self.layers)
        caption, image = layers["caption_embedding"], layers["image_embedding"]
        length = self.max_length

        def prefill(inputs):
            """Reads the caption and pads its keys and values to the caches' length."""
            positions = ops.expand_dims(ops.arange(caption.max_length), 0)
            hidden = caption(inputs["token_ids"], inputs["padding_mask"])
            hidden, caches = _features(layers, hidden, positions, positions)
            is_read = ops.ones_like(inputs["padding_mask"])
            state = incremental.state_after_prompt(is_read, caches, length)
            return layers["image_logits"](hidden[:, -1]), state

        def step(token_ids, state):
            """Reads one code per row."""
            new = incremental.DecodingStep(token_ids, state)
            places = ops.subtract(new.positions, caption.max_length)
            slots = _count(new.padding_mask[:, :-1])
            hidden, entries = _features(
                layers,
                image(new.token_ids, places),
                new.positions,
                ops.concatenate([slots, new.positions], axis=1),
                padding_mask=new.padding_mask,
                caches=new.caches,
            )
            return layers["image_logits"](hidden[:, 0]), new.state_after(entries)

        inputs = {
            name: keras.Input((caption.max_length,), dtype=dtype, name=name)
            for name, dtype in (("token_ids", "int32"), ("padding_mask", "bool"))
        }
        return build_pair(
            inputs,
            prefill,
            step,
            max_length=length,
            prompt_vocabulary_size=caption.vocabulary_size,
        )


def _text_losses(token_ids, padding_mask, outputs):
    """-log p of the word after each word, (B, T), and 1 where there is one, else 0."""
    logits = outputs["text_logits"]
    real = ops.cast(padding_mask, "int32")
    number = ops.cumsum(real, axis=1)  # From 1: the index of the next word.
    length = logits.shape[1] or ops.shape(logits)[1]
    words, is_word = tokens_in_order(token_ids, padding_mask, length)
    # The last of T words has no next one.
    last = ops.minimum(number, length - 1)
    follows = ops.take_along_axis(ops.cast(is_word, "int32"), last, axis=1)
    follows = follows * real * ops.cast(number < length, "int32")
    labels = ops.take_along_axis(words, last, axis=1)
    losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return losses, ops.cast(follows, losses.dtype)


def _image_losses(codes, outputs):
    """-log p of each code, (B, U), and 1 for each."""
    losses = ops.sparse_categorical_crossentropy(
        codes, outputs["image_logits"], from_logits=True
    )
    return losses, ops.ones_like(losses)

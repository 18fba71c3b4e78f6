"""Transformers that caption images.

    CNN -> map -> projection + position -> N encoder blocks ─┐
    ViT -> patches (-> projection) ──────────────────────────┤ keys and values
    caption -> embedding + position -> N decoder blocks ─────┴─> logits

    build_caption_cnn_transformer   the Transformer of `transformer.py` on a CNN's map
    build_caption_vit_transformer   no convolutions: a ViT, and GPT-2 with
                                    cross-attention

The encoders are here; the blocks and the decoder are in
`models/parts/decoders/cross_decoder.py`.

Legend: B batch, H and W pixels, h and w rows and columns of the map, C its channels, N
heads, S locations that are attended to, E width of the encoder, T length of the
caption, L length of a cache, D width, V vocabulary.
Layers: `backbone`, `image_projection`, `image_positions`, `image_dropout`,
`encoder_block_0`, … of the first, `encoder` and `image_projection` of the second; then
of both `token_embedding` (also the output matrix), `token_scale` (the first),
`caption_positions`, `caption_dropout`, `decoder_block_0`, …, and `decoder_norm` if the
blocks are pre-norm. `incremental()` finds them by these names.
"""

import math
from typing import Any

import keras
from keras import ops
from keras.layers import Rescaling, Reshape

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.decoding import IncrementalPair
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import (
    Dense,
    SinusoidalPositionEmbedding,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import normal
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import (
    FROM_VARIANT,
    block_options,
    block_sizes,
    check_variant,
)
from keras_attn.models.parts.backbones.feature_grid import grid_input, read_grid
from keras_attn.models.parts.bert_encoder import (
    bert_encoder,
    position_embedding,
    token_embedding,
)
from keras_attn.models.parts.decoders import cross_decoder
from keras_attn.models.parts.decoders.incremental import check_cache_length
from keras_attn.models.parts.functional import (
    Functional,
    by_name,
    numbered,
    sequence_inputs,
)
from keras_attn.models.vit import build_vit
from keras_attn.ops import gelu_tanh

VARIANTS = {
    # No sizes are published: this is the Transformer's base model with the map and
    # the vocabulary of Xu et al. 2015.
    "cnn": {
        "base": {
            "grid_size": 14,
            "feature_dim": 512,
            "vocabulary_size": 10_000,
            **block_sizes(num_layers=6, hidden_dim=512, num_heads=8),
            "dropout": 0.1,
        },
    },
    # ViT-B/16 and GPT-2 small, as in public checkpoints.
    "vit": {
        "base_patch16_gpt2_small": {
            "encoder": "base_patch16",
            "vocabulary_size": 50_257,
            "max_sequence_length": 1024,
            **block_sizes(num_layers=12, hidden_dim=768, num_heads=12),
        },
    },
}
CARDS = {
    "cnn": model_cards(
        "caption_cnn_transformer",
        {"base": None},
        notes="no published sizes; these are from the base Transformer",
        title="A Transformer that describes the map of a CNN",
        paper="Vaswani et al. 2017, arXiv:1706.03762",
        **tasks.captioning(features=tasks.MAP),
    ),
    "vit": model_cards(
        "caption_vit_transformer",
        {"base_patch16_gpt2_small": None},
        notes="as in public vision-encoder-decoder models",
        title="ViT-B/16 reads an image, GPT-2 small describes it",
        paper="Dosovitskiy et al. 2021, arXiv:2010.11929; Radford et al. 2019",
        **tasks.captioning(images=tasks.RGB + tasks.HALF),
    ),
}


@registered(CARDS["cnn"], VARIANTS["cnn"])
@described_as(cross_decoder.block_stack)
def build_caption_cnn_transformer(
    variant: str = "base",
    *,
    backbone: keras.Model | None = None,
    grid_size: int | tuple[int, int] = FROM_VARIANT,
    feature_dim: int = FROM_VARIANT,
    vocabulary_size: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    norm_first: bool = False,
    activation: Activation = "relu",
    layer_norm_epsilon: Epsilon = 1e-6,
    dropout: Probability = FROM_VARIANT,
    attention_dropout: Probability = 0.0,
    mlp_dropout: Probability = 0.0,
    return_attention_scores: bool = False,
    name: str = "caption_cnn_transformer",
) -> "TransformerCaptioner":
    """The Transformer, with the locations of a convolutional map as its source.

    Each location of the map becomes a vector of width D, to which sinusoids of its row
    and its column are added. The rest is the model of `build_transformer`.

    Args:
        variant: A row of `VARIANTS["cnn"]`, which supplies every argument not given.
        backbone: A Keras model from images to a map, as for `grid_input`. None = the
            model takes precomputed features.
        grid_size: h and w of the input `features`, one number or two.
        feature_dim: C of the input `features`.
        vocabulary_size: V.
        hidden_dim: D.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        return_attention_scores: Whether the model also returns what its words attend
            to, for example to display it on a device.
        name: Name of the model.

    Returns:
        A model from `features` (B, h, w, C), or with a backbone `images` (B, H, W,
        channels), and `decoder_token_ids` (B, T) to logits (B, T, V). With
        `return_attention_scores=True` to a dictionary of `logits` and
        `attention_scores`, (B, blocks · N, T, h · w), the heads of the first block
        first.

    Raises:
        TypeError, ValueError: If `backbone` does not output a map, see `grid_input`; or
            `hidden_dim` is odd, because its halves encode row and column.

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762).
    """
    if hidden_dim % 2:
        raise ValueError(
            "`hidden_dim` must be even: one half of the position encodes the row, the "
            f"other half the column. Received: hidden_dim={hidden_dim}"
        )
    inputs, grid = grid_input(backbone, grid_size, feature_dim)
    layers = [
        Dense(hidden_dim, name="image_projection"),
        SinusoidalPositionEmbedding(name="image_positions"),
        Dropout(dropout, name="image_dropout"),
        cross_decoder.scaled_embedding(vocabulary_size, hidden_dim),
        Rescaling(math.sqrt(hidden_dim), name="token_scale"),
        SinusoidalPositionEmbedding(name="caption_positions"),
        Dropout(dropout, name="caption_dropout"),
    ]
    for side in ("encoder", "decoder"):
        layers += cross_decoder.block_stack(
            side,
            num_layers=num_layers,
            num_heads=num_heads,
            mlp_dim=mlp_dim,
            norm_first=norm_first,
            **block_options(activation, layer_norm_epsilon, dropout, attention_dropout),
            mlp_dropout=mlp_dropout,
        )
    layers = by_name(layers)
    memory = _encode_map(layers, grid)
    return _connect(inputs, memory, layers, return_attention_scores, name)


@registered(CARDS["vit"], VARIANTS["vit"])
@described_as(bert_encoder)
def build_caption_vit_transformer(
    variant: str = "base_patch16_gpt2_small",
    *,
    encoder: str | keras.Model | dict[str, Any] = FROM_VARIANT,
    vocabulary_size: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    max_sequence_length: int = FROM_VARIANT,
    activation: Activation = gelu_tanh,
    layer_norm_epsilon: Epsilon = 1e-5,
    dropout: Probability = 0.1,
    attention_dropout: Probability = 0.1,
    return_attention_scores: bool = False,
    name: str = "caption_vit_transformer",
) -> "TransformerCaptioner":
    """A ViT reads the image; GPT-2, with cross-attention in each block, writes.

    The decoder attends to the class token and to the patches. If they are not as wide
    as the decoder, a dense layer projects them.

    Args:
        variant: A row of `VARIANTS["vit"]`, which supplies every argument not given.
        encoder: A model from `build_vit` without its top, the name of a variant, or a
            dictionary of arguments of `build_vit`.
        vocabulary_size: V.
        num_layers: Number of blocks of the decoder.
        hidden_dim: D.
        max_sequence_length: Number of positions.
        return_attention_scores: Whether the model also returns what its words attend
            to; the class token is the first of the 1 + patches locations.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) and `decoder_token_ids` (B, T) to
        logits (B, T, V), or with `return_attention_scores=True` a dictionary.

    Raises:
        TypeError, ValueError: If `encoder` is none of these.

    Reference:
        Dosovitskiy et al. 2021 (arXiv:2010.11929); Radford et al. 2019, "Language
        Models are Unsupervised Multitask Learners"; cross-attention of pretrained
        models: Rothe et al. 2020 (arXiv:1907.12461).
    """
    encoder = _as_encoder(encoder)
    initializer = normal(0.02)
    residual = normal(0.02 / math.sqrt(2 * num_layers))
    layers = [encoder]
    if encoder.output["sequence_output"].shape[-1] != hidden_dim:
        layers.append(
            Dense(hidden_dim, kernel_initializer=initializer, name="image_projection")
        )
    layers += [
        token_embedding(vocabulary_size, hidden_dim, initializer),
        position_embedding(max_sequence_length, initializer, name="caption_positions"),
        Dropout(dropout, name="caption_dropout"),
    ]
    layers += cross_decoder.block_stack(
        "decoder",
        num_layers=num_layers,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        norm_first=True,
        **block_options(activation, layer_norm_epsilon, dropout, attention_dropout),
        mlp_dropout=0.0,
        kernel_initializer=initializer,
        output_initializer=residual,
    )
    layers = by_name(layers)
    images = encoder.inputs[0]
    images = keras.Input(images.shape[1:], dtype=images.dtype, name="images")
    memory = _encode_patches(layers, images)
    image = {"images": images}
    return _connect(image, memory, layers, return_attention_scores, name)


def _as_encoder(encoder):
    """The ViT as a layer `encoder` of the captioner."""
    vit = encoder
    if isinstance(encoder, str | dict):
        options: Any = encoder
        if isinstance(encoder, str):
            check_variant("encoder", encoder, build_vit)
            options = {"variant": encoder}
        vit = build_vit(**options, include_top=False)
    if not isinstance(vit, keras.Model) or len(getattr(vit, "inputs", ())) != 1:
        raise TypeError(
            "`encoder` must be the name of a variant of ViT, arguments of `build_vit`, "
            "or a model from it with include_top=False. "
            f"Received: encoder={encoder!r}"
        )
    if not isinstance(vit.output, dict) or "sequence_output" not in vit.output:
        raise ValueError(
            "`encoder` must return `sequence_output`, the features of each patch: "
            f"build it with include_top=False. Received: encoder={encoder!r}"
        )
    outputs = {"sequence_output": vit.output["sequence_output"]}
    return Functional(vit.inputs[0], outputs, name="encoder")


def _connect(image, memory, layers, return_attention_scores, name):
    """The model of an image and a caption.

    Args:
        image: The input of the image, in a dictionary by its name.
        memory: What the decoder attends to, (B, S, E).
        layers: Layers by name.
        return_attention_scores: Whether to return what the decoder attends to.
        name: Name of the model.
    """
    inputs = image | sequence_inputs("decoder_token_ids")
    caption = _embed(layers, inputs["decoder_token_ids"])
    decoded = cross_decoder.decode(layers, caption, memory)
    outputs = layers["token_embedding"](decoded.features, reverse=True)
    if return_attention_scores:
        scores = ops.concatenate(decoded.scores, 1)
        outputs = {"logits": outputs, "attention_scores": scores}
    return TransformerCaptioner(inputs=inputs, outputs=outputs, name=name)


def _encode_map(layers, grid):
    """Features (B, h · w, D) of the locations of a map (B, h, w, C), row by row."""
    grid = layers["image_positions"](layers["image_projection"](grid))
    places = Reshape((-1, grid.shape[-1]))(grid)
    hidden = layers["image_dropout"](places)
    for block in numbered(layers, "encoder_block"):
        hidden = block(hidden)
    return layers["encoder_norm"](hidden) if "encoder_norm" in layers else hidden


def _encode_patches(layers, images):
    """Features (B, 1 + patches, D) of the class token and the patches."""
    hidden = layers["encoder"](images)["sequence_output"]
    return (
        layers["image_projection"](hidden) if "image_projection" in layers else hidden
    )


def _encode(layers, inputs):
    """The features to attend to, (B, S, D), and None: no location is padding."""
    if "encoder" in layers:
        return _encode_patches(layers, inputs["images"]), None
    return _encode_map(layers, read_grid(layers, inputs)), None


def _embed(layers, token_ids, positions=None):
    """Token embeddings and positions, (B, T, D)."""
    hidden = layers["token_embedding"](token_ids)
    if "token_scale" in layers:
        hidden = layers["token_scale"](hidden)
    hidden = layers["caption_positions"](hidden, positions)
    return layers["caption_dropout"](hidden)


@keras.saving.register_keras_serializable("keras_attn")
class TransformerCaptioner(Functional):
    """The functional model of both builders, with incremental decoding."""

    # Sinusoids set no limit to the length; without `max_length` caches are this long.
    default_max_length = 256

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens in the prompt and its continuation."""
        positions = self.get_layer("caption_positions")
        return getattr(positions, "max_sequence_length", None)

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for decoding token by token; see `cross_decoder.incremental_pair`.

        Args:
            max_length: L, the maximum number of tokens in the prompt and its
                continuation. Default: the number of positions, or 256 for sinusoids.

        Raises:
            ValueError: If `max_length` exceeds the number of positions.
        """
        limit = self.max_length
        length = check_cache_length(
            max_length, limit or self.default_max_length, is_limit=limit is not None
        )
        return cross_decoder.incremental_pair(self, _encode, _embed, length)

"""CLIP and SigLIP: one space for images and texts, learned from pairs of both.

    build_clip                  images, token_ids -> image and text embeddings
    build_siglip                the same, with a loss of one sigmoid per pair
    build_clip_image_encoder    images -> image embeddings
    build_clip_text_encoder     token_ids -> text embeddings

    I_f = image_tower(I)                        a ViT or a ResNet
    T_f = text_tower(T)                         a causal Transformer
    I_e = normalize(I_f W_i)                    `projection`, `unit_norm`
    T_e = normalize(T_f W_t)                    `text_projection`, `text_unit_norm`
    logits = exp(s) I_e T_eᵀ                    `similarity`
    loss = (cross_entropy(logits, 1 … B, rows)
            + cross_entropy(logits, 1 … B, columns)) / 2

This is figure 3 of the paper; the last two lines are `CLIP.compute_loss`. The two
models share that class and their helpers, so they share a file.

Legend: B batch, H and W pixels, T tokens, D width, E width of the embeddings.
Layers: the image tower's as in `build_vit`, with `embeddings_norm` before the blocks;
or as in `models/parts/backbones/resnet.py`, with `attention_pooling`; SigLIP has
`probe_pooling` instead of `class_token`. The text tower's are `text_token_embedding`,
`text_position_embedding`, `text_block_0`, …, `text_final_norm`, `text_pooling`.
"""

import functools
from collections.abc import Sequence
from typing import Annotated, TypedDict, Unpack

import keras
from keras import ops
from keras.layers import Dense, UnitNormalization

from keras_attn.argument_types import Activation
from keras_attn.checks import check_pair
from keras_attn.layers import (
    AttentionPooling,
    ClassToken,
    EndTokenPooling,
    LearnedPositionEmbedding,
    PatchEmbedding,
    ProbePooling,
    SimilarityLogits,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)
from keras_attn.layers.blocks.dropout import Dropout
from keras_attn.layers.initializers import normal
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.parts import tasks
from keras_attn.models.parts.backbones.resnet import pooled_resnet
from keras_attn.models.parts.computed_loss import computed_loss
from keras_attn.models.parts.functional import Functional, sequence_inputs
from keras_attn.models.parts.images import image_input
from keras_attn.models.parts.registry import model_cards, registered
from keras_attn.models.parts.variants import (
    FROM_VARIANT,
    block_sizes,
    check_variant,
    with_sizes,
)
from keras_attn.ops import gelu_tanh, quick_gelu
from keras_attn.options import Option, takes_options


def _sizes(text, embedding_dim, image_size=224, **image):
    """A row: the sizes of both towers."""
    text = {f"text_{name}": size for name, size in text.items()}
    return {**image, **text, "embedding_dim": embedding_dim, "image_size": image_size}


_clip = functools.partial(_sizes, vocabulary_size=49_408, max_sequence_length=77)
_BASE = block_sizes(num_layers=12, hidden_dim=768, num_heads=12)
_LARGE = block_sizes(num_layers=24, hidden_dim=1024, num_heads=16)
_TEXT = block_sizes(num_layers=12, hidden_dim=512, num_heads=8)
_LARGE_TEXT = block_sizes(num_layers=12, hidden_dim=768, num_heads=12)

VARIANTS = {
    # Radford et al. 2021, tables 19 and 20. The heads of a ResNet are its pooling's.
    "clip": {
        "vit_base_patch32": _clip(_TEXT, 512, patch_size=32, **_BASE),
        "vit_base_patch16": _clip(_TEXT, 512, patch_size=16, **_BASE),
        "vit_large_patch14": _clip(_LARGE_TEXT, 768, patch_size=14, **_LARGE),
        "vit_large_patch14_336": _clip(_LARGE_TEXT, 768, 336, patch_size=14, **_LARGE),
        "rn50": _clip(_TEXT, 1024, num_blocks=(3, 4, 6, 3), stem_dim=64, num_heads=32),
        "rn101": _clip(_TEXT, 512, num_blocks=(3, 4, 23, 3), stem_dim=64, num_heads=32),
    },
    # Zhai et al. 2023, in the authors' code; the embeddings are as wide as the towers.
    "siglip": {
        "base_patch16_224": {
            **_BASE,
            **{f"text_{name}": size for name, size in _BASE.items()},
            "image_size": 224,
            "patch_size": 16,
            "vocabulary_size": 32_000,
            "max_sequence_length": 64,
        },
    },
}
CARDS = {
    "clip": model_cards(
        "clip_{variant}",
        {
            "vit_base_patch32": (151_277_313, "ImageNet 63.2, zero-shot"),
            "vit_base_patch16": (149_620_737, "ImageNet 68.6, zero-shot"),
            "vit_large_patch14": (427_616_513, "ImageNet 75.3, zero-shot"),
            "vit_large_patch14_336": (427_944_193, "ImageNet 76.2, zero-shot"),
            "rn50": (102_007_137, "ImageNet 59.6, zero-shot"),
            "rn101": (119_688_033, "ImageNet 62.2, zero-shot"),
        },
        family="clip",
        title="CLIP {variant}: images and texts in one space",
        paper="Radford et al. 2021, arXiv:2103.00020",
        **tasks.image_text_similarity(tasks.CLIP_PIXELS, "up to the end token"),
    ),
    "siglip": model_cards(
        "siglip_{variant}",
        {"base_patch16_224": (203_155_970, "texts are padded to 64 tokens")},
        family="clip",
        title="SigLIP {variant}: CLIP with one sigmoid per pair",
        paper="Zhai et al. 2023, arXiv:2303.15343",
        **tasks.image_text_similarity(tasks.HALF, "padded to a fixed length"),
    ),
}


class _TowerOptions(TypedDict, total=False):
    """Options of both towers, which both builders take."""

    num_channels: Annotated[int, Option(3, "Channels of the images.")]
    vocabulary_size: Annotated[int, Option(FROM_VARIANT, "Number of token ids.")]
    max_sequence_length: Annotated[
        int, Option(FROM_VARIANT, "Number of positions of a text.")
    ]
    text_num_layers: Annotated[
        int, Option(FROM_VARIANT, "Number of blocks of the text tower.")
    ]
    text_hidden_dim: Annotated[int, Option(FROM_VARIANT, "D of the text tower.")]
    text_num_heads: Annotated[
        int, Option(FROM_VARIANT, "Attention heads per block of the text tower.")
    ]
    text_mlp_dim: Annotated[
        int,
        Option(FROM_VARIANT, "Width of the text tower's feed-forward networks."),
    ]
    dropout: Annotated[
        float,
        Option(0.0, "Probability of dropping a unit of an embedding or a sub-layer."),
    ]
    attention_dropout: Annotated[
        float, Option(0.0, "Probability of dropping an attention probability.")
    ]


@registered(CARDS["clip"])
@with_sizes(VARIANTS["clip"])
@takes_options
def build_clip(
    variant: str = "vit_base_patch32",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    patch_size: int | tuple[int, int] | None = FROM_VARIANT,
    num_layers: int | None = FROM_VARIANT,
    hidden_dim: int | None = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int | None = FROM_VARIANT,
    num_blocks: Sequence[int] | None = FROM_VARIANT,
    stem_dim: int | None = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    end_token_id: int | None = None,
    activation: Activation = quick_gelu,
    layer_norm_epsilon: float = 1e-5,
    name: str = "clip",
    **towers: Unpack[_TowerOptions],
) -> "CLIP":
    """An image tower and a text tower, whose embeddings of a pair are made similar.

    The image tower is a ViT, with a norm before its blocks and another on its class
    token, or a ResNet with `AttentionPooling`. The text tower is a causal pre-norm
    Transformer. A text needs no padding mask: the vector at its end token depends on
    no later position. Both towers start with the initial values of the authors' text
    tower, up to the first kernels of the feed-forward networks.

    Args:
        variant: A row of `VARIANTS["clip"]`, which supplies every argument left at
            None.
        image_size: In pixels: one number, or (rows, columns); a multiple of
            `patch_size`, or of the factor by which a ResNet shrinks the image, 32 with
            four stages.
        patch_size: Pixels of a patch, one number or two, of a ViT.
        num_layers: Number of blocks of a ViT.
        hidden_dim: D of a ViT.
        num_heads: Attention heads per block of a ViT; of a ResNet's pooling.
        mlp_dim: Width of the feed-forward networks of a ViT.
        num_blocks: Bottlenecks of each stage of a ResNet.
        stem_dim: Channels of the first map of a ResNet.
        embedding_dim: E.
        end_token_id: Id of the end token, whose first position in a text is the one
            that its embedding is computed from. None = the position of the largest id,
            as in the authors' code: in their vocabulary it is the end token, 49407.
        activation: Activation of the feed-forward networks: `quick_gelu`, as in the
            published models, or `"gelu"`, as in most of open_clip's own.
        layer_norm_epsilon: Added to the variance.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) and `token_ids` (B, T) to
        `image_embeddings` and `text_embeddings`, (B, E), of length 1. It learns from
        pairs without labels; see `CLIP`.

    Raises:
        ValueError: If an argument is for the other kind of image tower, `image_size`
            is not such a multiple, or `end_token_id` is not in the vocabulary.

    Reference:
        Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
        Supervision" (arXiv:2103.00020).
    """
    _check_tower(
        variant,
        {
            "patch_size": patch_size,
            "num_layers": num_layers,
            "hidden_dim": hidden_dim,
            "mlp_dim": mlp_dim,
        },
        {"num_blocks": num_blocks, "stem_dim": stem_dim},
    )
    _check_end_token(end_token_id, towers["vocabulary_size"])
    options = _block_options(activation, layer_norm_epsilon, **towers)
    if num_blocks is None:
        images = image_input(image_size, towers["num_channels"], patch_size)
        hidden = _patches(images, hidden_dim, patch_size, use_bias=False)
        hidden = ClassToken(initializer=normal(hidden_dim**-0.5), name="class_token")(
            hidden
        )
        hidden = _add_positions(hidden, "", hidden_dim**-0.5)
        hidden = _norm("embeddings_norm", options)(hidden)
        hidden = Dropout(options["dropout"], name="embeddings_dropout")(hidden)
        hidden = _blocks(hidden, "", num_layers, num_heads, mlp_dim, options)
        features = _norm("final_norm", options)(hidden[:, 0])
        image_embeddings = _project(features, embedding_dim)
    else:
        images = _resnet_input(image_size, towers["num_channels"], num_blocks)
        hidden = pooled_resnet(images, stem_dim, num_blocks)
        scale = normal(hidden.shape[-1] ** -0.5)
        image_embeddings = AttentionPooling(
            num_heads,
            embedding_dim,
            kernel_initializer=scale,
            embeddings_initializer=scale,
            name="attention_pooling",
        )(hidden)

    token_ids, hidden = _embed_text(0.02, 0.01, **towers)
    hidden = _text_blocks(hidden, options, causal=True, **towers)
    hidden = _norm("text_final_norm", options)(hidden)
    features = EndTokenPooling(end_token_id, name="text_pooling")(hidden, token_ids)
    text_embeddings = _project(features, embedding_dim, "text_")

    similarity = SimilarityLogits(name="similarity")
    return _model(
        images, token_ids, image_embeddings, text_embeddings, similarity, name
    )


@registered(CARDS["siglip"])
@with_sizes(VARIANTS["siglip"])
@takes_options
def build_siglip(
    variant: str = "base_patch16_224",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    patch_size: int | tuple[int, int] = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    activation: Activation = gelu_tanh,
    layer_norm_epsilon: float = 1e-6,
    name: str = "siglip",
    **towers: Unpack[_TowerOptions],
) -> "CLIP":
    """CLIP with a loss of its own for each pair, and without masks.

    The image tower is a ViT without a class token, which `ProbePooling` summarizes. The
    text tower is not causal; a text is read at its last position, and its padding is
    attended to. So it must be padded, at the right, to the length that the published
    models were trained with, `max_sequence_length`.

    Args:
        variant: A row of `VARIANTS["siglip"]`, which supplies every argument left at
            None.
        image_size: In pixels: one number, or (rows, columns); a multiple of
            `patch_size`.
        patch_size: Pixels of a patch, one number or two.
        num_layers: Number of blocks of the image tower.
        hidden_dim: D of the image tower, and E.
        num_heads: Attention heads per block of the image tower, and of its pooling.
        mlp_dim: Width of the feed-forward networks of the image tower.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        name: Name of the model.

    Returns:
        A model as from `build_clip`.

    Reference:
        Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training"
        (arXiv:2303.15343).
    """
    options = _block_options(activation, layer_norm_epsilon, **towers)
    images = image_input(image_size, towers["num_channels"], patch_size)
    hidden = _patches(images, hidden_dim, patch_size)
    hidden = _add_positions(hidden, "", hidden_dim**-0.5)
    hidden = Dropout(options["dropout"], name="embeddings_dropout")(hidden)
    hidden = _blocks(hidden, "", num_layers, num_heads, mlp_dim, options)
    hidden = _norm("final_norm", options)(hidden)
    image_embeddings = ProbePooling(
        num_heads,
        mlp_dim,
        activation=activation,
        layer_norm_epsilon=layer_norm_epsilon,
        name="probe_pooling",
    )(hidden)

    scale = towers["text_hidden_dim"] ** -0.5
    token_ids, hidden = _embed_text(scale, scale, **towers)
    hidden = _text_blocks(hidden, options, causal=False, **towers)
    hidden = _norm("text_final_norm", options)(hidden)
    text_embeddings = Dense(hidden_dim, name="text_projection")(hidden[:, -1])

    similarity = SimilarityLogits(
        10.0, max_scale=None, initial_bias=-10.0, name="similarity"
    )
    return _model(
        images, token_ids, image_embeddings, text_embeddings, similarity, name
    )


def _model(images, token_ids, image_embeddings, text_embeddings, similarity, name):
    """The model of embeddings (B, E) of any length, which it normalizes."""
    image_embeddings = UnitNormalization(dtype="float32", name="unit_norm")(
        image_embeddings
    )
    text_embeddings = UnitNormalization(dtype="float32", name="text_unit_norm")(
        text_embeddings
    )
    outputs = {
        # Unchanged: the layer becomes part of the graph.
        "image_embeddings": similarity(image_embeddings),
        "text_embeddings": text_embeddings,
    }
    inputs = {"images": images, "token_ids": token_ids}
    return CLIP(inputs=inputs, outputs=outputs, name=name)


def _block_options(activation, layer_norm_epsilon, *, dropout, attention_dropout, **_):
    """The arguments of a block that both towers share."""
    return {
        "activation": activation,
        "norm_first": True,
        "layer_norm_epsilon": layer_norm_epsilon,
        "dropout": dropout,
        "attention_dropout": attention_dropout,
    }


def _patches(images, hidden_dim, patch_size, use_bias=True):
    """(B, H, W, channels) -> (B, patches, D)."""
    return PatchEmbedding(
        hidden_dim,
        check_pair("patch_size", patch_size),
        use_bias=use_bias,
        name="patch_embedding",
    )(images)


def _embed_text(
    token_scale,
    position_scale,
    *,
    vocabulary_size,
    max_sequence_length,
    text_hidden_dim,
    dropout,
    **_,
):
    """The input `token_ids`, and its embeddings (B, T, D)."""
    token_ids = sequence_inputs("token_ids")["token_ids"]
    hidden = TokenEmbedding(
        vocabulary_size,
        text_hidden_dim,
        embeddings_initializer=normal(token_scale),
        name="text_token_embedding",
    )(token_ids)
    hidden = _add_positions(hidden, "text_", position_scale, max_sequence_length)
    return token_ids, Dropout(dropout, name="text_embeddings_dropout")(hidden)


def _text_blocks(
    hidden,
    options,
    causal,
    *,
    text_num_layers,
    text_num_heads,
    text_mlp_dim,
    **_,
):
    """The blocks of the text tower, (B, T, D) -> (B, T, D)."""
    sizes = (text_num_layers, text_num_heads, text_mlp_dim)
    return _blocks(hidden, "text_", *sizes, options, causal)


def _blocks(hidden, start, num_layers, num_heads, mlp_dim, options, causal=False):
    """Pre-norm blocks `<start>block_0`, …, (B, T, D) -> (B, T, D)."""
    # A decoder block without an encoder is an encoder block with a causal mask.
    block = TransformerDecoderBlock if causal else TransformerEncoderBlock
    residual = normal((2 * num_layers * hidden.shape[-1]) ** -0.5)
    for index in range(num_layers):
        hidden = block(
            num_heads,
            mlp_dim,
            output_initializer=residual,
            name=f"{start}block_{index}",
            **options,
        )(hidden)
    return hidden


def _add_positions(hidden, start, scale, length=None):
    """Adds a learned vector for each position of (B, T, D)."""
    return LearnedPositionEmbedding(
        length or hidden.shape[1],
        embeddings_initializer=normal(scale),
        name=f"{start}position_embedding",
    )(hidden)


def _norm(name, options):
    return LayerNormalization(epsilon=options["layer_norm_epsilon"], name=name)


def _project(features, embedding_dim, start=""):
    """(B, D) -> (B, E)."""
    return Dense(
        embedding_dim,
        use_bias=False,
        kernel_initializer=normal(features.shape[-1] ** -0.5),
        name=f"{start}projection",
    )(features)


def _check_tower(variant, of_vit, of_resnet):
    """Raises if arguments of both kinds of image towers are given."""
    given = [name for name, size in of_vit.items() if size is not None]
    others = [name for name, size in of_resnet.items() if size is not None]
    if given and others:
        raise ValueError(
            f"`{given[0]}` is for an image tower that is a ViT, and `{others[0]}` for "
            "a ResNet: leave one of them out, or choose another `variant`. "
            f"Received: variant={variant!r}"
        )


def _resnet_input(image_size, num_channels, num_blocks):
    """The input of a ResNet, which halves the map in its stem and between stages."""
    factor = 4 * 2 ** (len(num_blocks) - 1)
    sides = check_pair("image_size", image_size)
    if any(side % factor for side in sides):
        raise ValueError(
            f"`image_size` must be a multiple of {factor}, by which the ResNet shrinks "
            f"the image. Received: image_size={image_size}"
        )
    return image_input(sides, num_channels)


def _check_end_token(end_token_id, vocabulary_size):
    if end_token_id is not None and not 0 <= end_token_id < vocabulary_size:
        raise ValueError(
            f"`end_token_id` must be in [0, {vocabulary_size}), the vocabulary. "
            f"Received: end_token_id={end_token_id}"
        )


def build_clip_image_encoder(
    clip: "str | CLIP" = "vit_base_patch32", *, name: str = "clip_image_encoder"
) -> Functional:
    """The image tower alone.

    Args:
        clip: A model from `build_clip` or `build_siglip`, whose layers are shared, or
            the name of a variant of `build_clip`, which is built.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to their embeddings (B, E), of length
        1 and in float32.
    """
    return as_clip(clip).image_encoder(name)


def build_clip_text_encoder(
    clip: "str | CLIP" = "vit_base_patch32", *, name: str = "clip_text_encoder"
) -> Functional:
    """The text tower alone.

    Args:
        clip: A model from `build_clip` or `build_siglip`, whose layers are shared, or
            the name of a variant of `build_clip`, which is built.
        name: Name of the model.

    Returns:
        A model from `token_ids` (B, T) to their embeddings (B, E), of length 1 and in
        float32.
    """
    return as_clip(clip).text_encoder(name)


def as_clip(clip: "str | CLIP") -> "CLIP":
    """Returns a model unchanged, or builds the variant of that name.

    Raises:
        ValueError: If `clip` is a name that is not among the variants.
        TypeError: If `clip` is neither a model nor a name.
    """
    if isinstance(clip, str):
        check_variant("clip", clip, build_clip)
        return build_clip(clip)
    if not isinstance(clip, CLIP):
        raise TypeError(
            "`clip` must be the name of a variant, or a model from `build_clip` or "
            f"`build_siglip`. Received: clip={clip!r}"
        )
    return clip


@keras.saving.register_keras_serializable("keras_attn")
class CLIP(Functional):
    """The model of `build_clip` and `build_siglip`: its loss, and its towers.

    `fit` takes pairs, a dictionary of `images` and `token_ids`, and no labels: text i
    belongs to image i, and all others of the batch do not. `compile` takes no loss.
    CLIP's is the mean of two cross-entropies, of the text of each image and of the
    image of each text; SigLIP's is the sum of a binary cross-entropy for each image
    and text, divided by B.

    `fit` and `evaluate` also log the share of images whose most similar text in the
    batch is their own, `image_accuracy`, and the same of texts, `text_accuracy`.

    Reference:
        Radford et al. 2021, section 2.3 and figure 3 (arXiv:2103.00020); Zhai et al.
        2023, section 3 (arXiv:2303.15343).
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._image_accuracy = keras.metrics.Mean(name="image_accuracy")
        self._text_accuracy = keras.metrics.Mean(name="text_accuracy")

    @property
    def similarity(self) -> SimilarityLogits:
        """The layer of the temperature."""
        return self.get_layer("similarity")

    def logits(self, image_embeddings, text_embeddings):
        """The scaled similarity of each image with each text.

        Args:
            image_embeddings: (P, E).
            text_embeddings: (Q, E).

        Returns:
            (P, Q), float32: CLIP's softmax of a row is the probability of each text,
            SigLIP's sigmoid of an element the probability that the two belong together.
        """
        return self.similarity(image_embeddings, text_embeddings)

    def image_encoder(self, name: str = "clip_image_encoder") -> Functional:
        """The image tower; see `build_clip_image_encoder`."""
        return Functional(
            self.input["images"], self.get_layer("unit_norm").output, name=name
        )

    def text_encoder(self, name: str = "clip_text_encoder") -> Functional:
        """The text tower; see `build_clip_text_encoder`."""
        return Functional(
            self.input["token_ids"], self.get_layer("text_unit_norm").output, name=name
        )

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The contrastive loss of a batch of pairs; see the class.

        Args:
            x: The pairs; not used.
            y: None.
            y_pred: The embeddings.
            sample_weight: None.
            training: Whether the model is being trained; not used.

        Returns:
            A scalar.

        Raises:
            ValueError: If there are labels or sample weights.
        """
        for argument, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(
                    f"`{argument}` must be None: the model learns from pairs of images "
                    f"and texts alone. Received: {argument}={value!r}"
                )
        return computed_loss(
            _loss(
                y_pred["image_embeddings"], y_pred["text_embeddings"], self.similarity
            )
        )

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The accuracies, and the metrics of `compile`."""
        similarities = ops.matmul(
            y_pred["image_embeddings"], ops.transpose(y_pred["text_embeddings"])
        )
        own = ops.arange(ops.shape(similarities)[0], dtype="int32")
        for metric, axis in ((self._image_accuracy, 1), (self._text_accuracy, 0)):
            best = ops.cast(ops.argmax(similarities, axis=axis), "int32")
            metric.update_state(ops.equal(best, own))
        return super().compute_metrics(x, y, y_pred, sample_weight)


def _loss(image_embeddings, text_embeddings, similarity):
    """The loss of B pairs, from the whole matrix of logits."""
    logits = similarity(image_embeddings, text_embeddings)
    count = ops.shape(logits)[0]
    if similarity.logit_bias is not None:
        signs = 2 * ops.eye(count, dtype="float32") - 1
        total = ops.sum(ops.softplus(-signs * logits))
        return total / ops.cast(count, "float32")
    own = ops.arange(count, dtype="int32")
    rows, columns = (
        ops.mean(ops.sparse_categorical_crossentropy(own, scores, from_logits=True))
        for scores in (logits, ops.transpose(logits))
    )
    return (rows + columns) / 2

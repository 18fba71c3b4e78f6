"""Models of pairs: an image tower and a text tower whose embeddings are compared.

The class of CLIP and SigLIP, with their losses, and what both build their towers from.

Legend: B batch, H and W pixels, T tokens, D width, E width of the embeddings, P and Q
numbers of images and texts.
"""

from typing import Any

import keras
from keras import ops
from keras.layers import UnitNormalization

from keras_attn.kernels.replicas import at_least_one_row, divided_by_replicas
from keras_attn.kernels.runtime import has_distribution_strategy
from keras_attn.layers import (
    LearnedPositionEmbedding,
    PatchEmbedding,
    SimilarityLogits,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import normal
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.losses.contrastive import clip_loss, siglip_loss
from keras_attn.models.parts.functional import Functional, sequence_inputs
from keras_attn.models.parts.own_loss import OwnLossModel


def embed_patches(images, hidden_dim, patch_size, **options):
    """(B, H, W, channels) -> (B, patches, D), by the layer `patch_embedding`."""
    layer = PatchEmbedding(hidden_dim, patch_size, name="patch_embedding", **options)
    return layer(images)


def text_tower(
    options,
    *,
    causal,
    token_scale=None,
    position_scale=None,
    vocabulary_size,
    max_sequence_length,
    text_num_layers,
    text_hidden_dim,
    text_num_heads,
    text_mlp_dim,
):
    """The input `token_ids` (B, T), and the features (B, T, D) of all tokens.

    Both builders take the descriptions of their arguments from here.

    Args:
        options: From `block_options`.
        causal: Whether a token attends only to itself and to earlier tokens.
        token_scale: Standard deviation of the initial token embeddings. Default: 1/√D.
        position_scale: The same of the position embeddings.
        vocabulary_size: Number of token ids.
        max_sequence_length: Number of positions of a text.
        text_num_layers: Number of blocks of the text tower.
        text_hidden_dim: D of the text tower.
        text_num_heads: Attention heads per block of the text tower.
        text_mlp_dim: Width of the text tower's feed-forward networks.
    """
    default = text_hidden_dim**-0.5
    token_ids = sequence_inputs("token_ids")["token_ids"]
    hidden = TokenEmbedding(
        vocabulary_size,
        text_hidden_dim,
        embeddings_initializer=normal(token_scale or default),
        name="text_token_embedding",
    )(token_ids)
    hidden = add_positions(
        hidden, "text_", position_scale or default, max_sequence_length
    )
    hidden = Dropout(options["dropout"], name="text_embeddings_dropout")(hidden)
    sizes = (text_num_layers, text_num_heads, text_mlp_dim)
    hidden = transformer_blocks(hidden, "text_", *sizes, options, causal)
    norm = LayerNormalization(
        epsilon=options["layer_norm_epsilon"], name="text_final_norm"
    )
    return token_ids, norm(hidden)


def transformer_blocks(
    hidden, start, num_layers, num_heads, mlp_dim, options, causal=False
):
    """Pre-norm blocks, (B, T, D) -> (B, T, D).

    Args:
        hidden: The input of the first block.
        start: The blocks are `<start>block_0`, ….
        num_layers: Number of blocks.
        num_heads: Attention heads per block.
        mlp_dim: Width of the feed-forward networks.
        options: From `block_options`.
        causal: As in `text_tower`.
    """
    # A decoder block without an encoder is an encoder block with a causal mask.
    block = TransformerDecoderBlock if causal else TransformerEncoderBlock
    residual = normal((2 * num_layers * hidden.shape[-1]) ** -0.5)
    for index in range(num_layers):
        hidden = block(
            num_heads,
            mlp_dim,
            norm_first=True,
            output_initializer=residual,
            name=f"{start}block_{index}",
            **options,
        )(hidden)
    return hidden


def add_positions(hidden, start, scale, length=None):
    """Adds a learned vector for each position of (B, T, D).

    Args:
        hidden: The tensor to add to.
        start: The layer is `<start>position_embedding`.
        scale: Standard deviation of the initial vectors.
        length: Number of positions. Default: T.
    """
    return LearnedPositionEmbedding(
        length or hidden.shape[1],
        embeddings_initializer=normal(scale),
        name=f"{start}position_embedding",
    )(hidden)


def dual_encoder(
    images, token_ids, image_embeddings, text_embeddings, similarity, name
):
    """The model of two embeddings (B, E), which it scales to length 1.

    Args:
        images: The input of the image tower.
        token_ids: The input of the text tower.
        image_embeddings: The output of the image tower.
        text_embeddings: The output of the text tower.
        similarity: The layer `similarity`.
        name: Name of the model.
    """
    image_embeddings = UnitNormalization(dtype="float32", name="unit_norm")(
        image_embeddings
    )
    text_embeddings = UnitNormalization(dtype="float32", name="text_unit_norm")(
        text_embeddings
    )
    outputs = {
        # Unchanged: the layer only becomes part of the graph.
        "image_embeddings": similarity(image_embeddings),
        "text_embeddings": text_embeddings,
    }
    inputs = {"images": images, "token_ids": token_ids}
    return DualEncoder(inputs=inputs, outputs=outputs, name=name)


@keras.saving.register_keras_serializable("keras_attn")
class DualEncoder(OwnLossModel):
    """The model of `build_clip` and `build_siglip`: its loss, and its towers.

    `fit` takes pairs, a dictionary of `images` and `token_ids`, and no labels: text i
    belongs to image i, and all others of the batch do not. `compile` takes no loss.
    CLIP's is the mean of two cross-entropies, of the text of each image and of the
    image of each text; SigLIP's is the sum of a binary cross-entropy for each image
    and text, divided by B (`losses.clip_loss`, `losses.siglip_loss`). The batch is of
    all devices together, so B is the batch size of `fit`.

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
        encoder = Functional(
            self.input["images"], self.get_layer("unit_norm").output, name=name
        )
        encoder.preprocessing, encoder.source = self.preprocessing, self.source
        return encoder

    def text_encoder(self, name: str = "clip_text_encoder") -> Functional:
        """The text tower; see `build_clip_text_encoder`."""
        return Functional(
            self.input["token_ids"], self.get_layer("text_unit_norm").output, name=name
        )

    def call(self, inputs, training=None, mask=None, **kwargs):
        """The embeddings, also of no pair, which the last batch may leave a replica.

        TensorFlow's gradient of a convolution may fail without an image
        ("Missing 1-th output").
        """
        if not has_distribution_strategy():
            return super().call(inputs, training, mask, **kwargs)
        count = ops.shape(inputs["images"])[0]
        padded = {name: at_least_one_row(value) for name, value in inputs.items()}
        outputs = super().call(padded, training, mask, **kwargs)
        return {name: value[:count] for name, value in outputs.items()}

    def compute_loss(
        self, x=None, y=None, y_pred: Any = None, sample_weight=None, training=True
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
                    f"`{argument}` must be None: the model learns only from pairs of "
                    f"images and texts. Received: {argument}={value!r}"
                )
        embeddings = y_pred["image_embeddings"], y_pred["text_embeddings"]
        scale, bias = ops.exp(self.similarity.logit_scale), self.similarity.logit_bias
        if bias is None:
            loss = clip_loss(*embeddings, scale)
        else:
            loss = siglip_loss(*embeddings, scale, bias)
        # Each replica of `tf.distribute` has the loss of the pairs of all replicas, and
        # Keras adds up their gradients. On one device it is `loss`.
        return divided_by_replicas(loss)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The accuracies, and the metrics of `compile`."""
        from keras_attn.losses.contrastive import retrieval_hits

        of_images, of_texts = retrieval_hits(
            y_pred["image_embeddings"], y_pred["text_embeddings"]
        )
        self._image_accuracy.update_state(of_images)
        self._text_accuracy.update_state(of_texts)
        return super().compute_metrics(x, y, y_pred, sample_weight)

"""The parts of an image that make it similar to a text.

Legend: P images, Q texts, H and W pixels, T tokens of a text, N heads, L tokens of the
image, R rows and S columns of patches or of a map.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_attn.layers import AttentionPooling, ProbePooling
from keras_attn.layers.recorder import record_attention_scores
from keras_attn.viz.images import patch_grid
from keras_attn.viz.similarity import check_dual_encoder


def image_relevance(model: Any, images, token_ids) -> np.ndarray:
    """Maps how much each part of an image contributes to its similarity with a text.

    A text may be a single word, to see which part of the image the word stands for. The
    gradient is of the cosine of the two embeddings.

    In a ViT, attention counts as far as more of it would increase the similarity:
    `A_l = mean_h max(0, A_lh ∂cos/∂A_lh)`, and the relevance is `Π_l (I + A_l)`, the
    last layer first, like `attention_rollout`; the row of the class token is returned,
    or what the learned query of SigLIP's pooling makes of all rows. In a ResNet, it is
    Grad-CAM of the map before the pooling: `max(0, Σ_c z_c mean_rs ∂cos/∂z_c)`.

    Args:
        model: A model from `build_clip` or `build_siglip`.
        images: (P, H, W, channels), inputs of the image tower.
        token_ids: (Q, T), inputs of the text tower.

    Returns:
        Nonnegative float32 (P, Q, R, S), of any scale: values compare parts of one
        image.

    Raises:
        TypeError: If `model` is not such a model.
        ValueError: If the backend is not TensorFlow.

    Example:
        ```python
        import numpy as np
        from keras_attn import models, viz

        clip = models.build_clip(image_size=64, num_layers=1, text_num_layers=1)
        images = np.random.uniform(size=(1, 64, 64, 3))
        token_ids = np.array([[49406, 320, 1929, 49407]])
        maps = viz.image_relevance(clip, images, token_ids)  # (1, 1, 2, 2)
        viz.plot_image_attention(images[0], maps[0], labels=["a dog"])
        ```

    Reference:
        Chefer et al. 2021, "Generic Attention-model Explainability for Interpreting
        Bi-Modal and Encoder-Decoder Transformers", section 3.1 (arXiv:2103.15679);
        Selvaraju et al. 2017, "Grad-CAM", section 3 (arXiv:1610.02391).
    """
    check_dual_encoder(model)
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Gradients with respect to attention need the TensorFlow backend. "
            f"Received: backend={keras.backend.backend()!r}"
        )
    texts = model.text_encoder()(token_ids, training=False)
    encoder = model.image_encoder()
    if any(isinstance(layer, AttentionPooling) for layer in encoder.layers):
        return _grad_cam(encoder, images, texts)
    return _weighted_rollout(encoder, images, texts)


def _weighted_rollout(encoder, images, texts) -> np.ndarray:
    """The maps of a ViT."""
    with tf.GradientTape(persistent=True) as tape:
        with record_attention_scores() as recorded:
            embeddings = encoder(images, training=False)
        totals = _similarity_to_each(embeddings, texts)
    layers = list(recorded.values())  # (P, N, L, L), and of a query (P, N, 1, L).
    has_probe = any(isinstance(layer, ProbePooling) for layer in encoder.layers)
    grid = patch_grid(encoder)
    maps = []
    for total in totals:
        gradients = tape.gradient(total, layers)
        one = np.eye(layers[0].shape[-1], dtype="float32")
        relevance = one  # (L, L), and from the first layer on (P, L, L).
        for scores, gradient in zip(layers, gradients, strict=True):
            weights = np.maximum(np.asarray(scores) * np.asarray(gradient), 0).mean(1)
            is_query = weights.shape[1] == 1
            relevance = (0 if is_query else relevance) + weights @ relevance
        row = relevance[:, 0] if has_probe else relevance[:, 0, 1:]
        maps.append(row.reshape(len(row), *grid))
    return np.stack(maps, axis=1)


def _grad_cam(encoder, images, texts) -> np.ndarray:
    """The maps of a ResNet."""
    (pooling,) = [x for x in encoder.layers if isinstance(x, AttentionPooling)]
    both = keras.Model(encoder.input, [pooling.input, encoder.output])
    with tf.GradientTape(persistent=True) as tape:
        features, embeddings = both(images, training=False)
        totals = _similarity_to_each(embeddings, texts)
    maps = []
    for total in totals:
        gradient = tape.gradient(total, features)
        # In float32: sums in half precision lose small terms.
        gradient = tf.cast(gradient, tf.float32)
        weights = tf.reduce_mean(gradient, axis=(1, 2), keepdims=True)
        found = tf.reduce_sum(weights * tf.cast(features, tf.float32), axis=-1)
        maps.append(np.asarray(tf.nn.relu(found)))
    return np.stack(maps, axis=1)


def _similarity_to_each(embeddings, texts) -> list:
    """The cosine with each text, summed over the images, which do not interact."""
    cosines = tf.matmul(embeddings, tf.convert_to_tensor(texts), transpose_b=True)
    return tf.unstack(tf.reduce_sum(cosines, axis=0))

"""A classifier of images whose classes are described in words.

    w_c = normalize(mean_k normalize(text_tower(template_k(label_c))))
    logits = exp(s) normalize(image_tower(I)) · w_c

Legend: C classes, K templates, T tokens, E width of the embeddings.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_attn.models.parts.dual_encoder import DualEncoder
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import logits_layer
from keras_attn.models.parts.pair_encoders import caption_encoder

# Seven of the authors' 80 prompts for ImageNet, which they found by forward selection.
ZERO_SHOT_TEMPLATES = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
_PLACE = "{}"


def zero_shot_classifier(
    clip: DualEncoder,
    tokenizer: Any,
    labels: Sequence[str],
    templates: Sequence[str] = ("a photo of a {}.",),
    *,
    batch_size: int = 64,
    name: str = "zero_shot_classifier",
) -> Functional:
    """A classifier of images, made from the names of its classes.

    Each class is the mean of the text embeddings of its captions, one per template. The
    classifier is the image tower, whose layers it shares, and a layer `classifier` with
    these means as its kernel, times the scale of the similarities. It is a model like
    any other: it fits, evaluates, saves and exports, without the text tower.

    Args:
        clip: A model from `build_clip` or `build_siglip`, usually from
            `load_checkpoint`.
        tokenizer: Makes token ids from captions: a tokenizer from
            `load_text_tokenizer`, or a function from a list of strings to integers
            (C · K, T), or to a dictionary with these as `token_ids`.
        labels: The name of each class.
        templates: Captions with `{}` in place of the label, which mean the same: such
            as `ZERO_SHOT_TEMPLATES`, seven that were selected for ImageNet.
        batch_size: Number of captions to embed at a time.
        name: Name of the model.

    Returns:
        A model from `images` to logits (B, C): their softmax is the probability of each
        class, given that the image shows one of them. Its `class_names` are the labels.

    Raises:
        TypeError: If `clip` is not such a model, or `labels` or `templates` is a single
            string.
        ValueError: If labels or templates are missing, a label is empty or is not a
            string, a label is repeated, a template lacks `{}`, or a caption has more
            tokens than the text tower has positions.

    Example:
        Needs a checkpoint of CLIP:

        ```python
        from keras_attn import data, models

        clip = models.load_checkpoint("clip-vit-base-patch32")
        tokenizer = data.load_text_tokenizer("clip-vit-base-patch32")
        classifier = models.zero_shot_classifier(clip, tokenizer, ["cat", "dog"])
        ```

    Reference:
        Radford et al. 2021, sections 3.1.2 and 3.1.4 (arXiv:2103.00020); the seven
        templates: the authors' published notebook on prompts for ImageNet.
    """
    encode = caption_encoder(clip, tokenizer, batch_size=batch_size)
    labels = _checked("labels", labels)
    templates = _checked("templates", templates)
    for template in templates:
        if _PLACE not in template:
            raise ValueError(
                "`templates` must have `{}` in place of the label. "
                f"Received: {template!r}"
            )
    captions = [x.replace(_PLACE, label) for label in labels for x in templates]
    means = (
        encode(captions).reshape(len(labels), len(templates), -1).mean(axis=1)
    )  # (C, E)
    means /= np.linalg.norm(means, axis=1, keepdims=True)

    encoder, similarity = clip.image_encoder(), clip.similarity
    scale = np.exp(keras.ops.convert_to_numpy(similarity.logit_scale))
    has_bias = similarity.logit_bias is not None
    layer = logits_layer(len(labels), "classifier", use_bias=has_bias)
    model = Functional(encoder.input, layer(encoder.output), name=name)
    layer.kernel.assign(scale * means.T)
    if has_bias:
        bias = keras.ops.convert_to_numpy(similarity.logit_bias)
        layer.bias.assign(np.full(len(labels), bias))
    model.class_names, model.preprocessing = labels, clip.preprocessing
    return model


def _checked(name: str, texts: Sequence[str]) -> list[str]:
    """The labels or templates as a list, after a check."""
    if isinstance(texts, str):
        raise TypeError(
            f"`{name}` must be a list of strings, not one string. "
            f"Received: {name}={texts!r}"
        )
    texts = list(texts)
    if not texts:
        raise ValueError(f"`{name}` must not be empty. Received: {name}=[]")
    seen = set()
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(
                f"`{name}` must be strings that are not empty. Received: {text!r}"
            )
        if text in seen:
            raise ValueError(f"`{name}` must be different. Received: {text!r} twice")
        seen.add(text)
    return texts

"""Fields that the cards of several models share: task, inputs and outputs.

    CARDS = model_cards("vgg{variant}", …, **tasks.image_classification(tasks.IMAGENET))

Each function or dictionary has the fields `task`, `inputs` and `outputs` of
`registry.model_cards`, those of images also `preprocessing`. A model with a unique task
defines them itself.
"""

from typing import Any

from keras_attn.models.parts.preprocessing_fields import Steps, make_fields

PADDING_MASK = "(B, T) bool, True = a real token"
RGB = "(B, H, W, 3) float, red, green, blue; "
# The normalizations of images that published checkpoints were trained with.
UNIT = "in [0, 1]"
HALF = "in [0, 1], normalized to [-1, 1] by mean and standard deviation 0.5"
IMAGENET = (
    "in [0, 1], normalized by the mean (0.485, 0.456, 0.406) and the standard "
    "deviation (0.229, 0.224, 0.225)"
)
CLIP_PIXELS = (
    "in [0, 1], normalized by the mean (0.48145466, 0.4578275, 0.40821073) and the "
    "standard deviation (0.26862954, 0.26130258, 0.27577711)"
)
# The mean and the standard deviation of each.
_STATISTICS = {
    UNIT: ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
    HALF: ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
    IMAGENET: ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    CLIP_PIXELS: (
        [0.48145466, 0.4578275, 0.40821073],
        [0.26862954, 0.26130258, 0.27577711],
    ),
}
_SIDE = 224
MAP = "(B, h, w, C) float, a map of a network; with a backbone `images`"

TRANSLATION: dict[str, Any] = {
    "task": "translation",
    "inputs": {
        "token_ids": "(B, S) int32, the source",
        "padding_mask": "(B, S) bool, True = a real source token",
        "decoder_token_ids": "(B, T) int32, the target after its start token",
    },
    "outputs": {"logits": "(B, T, V), before the softmax"},
}
LANGUAGE_MODEL: dict[str, Any] = {
    "task": "language model",
    "inputs": {"token_ids": "(B, T) int32", "padding_mask": PADDING_MASK},
    "outputs": {"logits": "(B, T, V), of the next token at every position"},
}


def text_encoding(pooled_output: str, **further_inputs: str) -> dict[str, Any]:
    """A text encoder: how it pools, and its inputs after token ids and mask."""
    inputs = {"token_ids": "(B, T) int32", "padding_mask": PADDING_MASK}
    return {
        "task": "encoder",
        "inputs": {**inputs, **further_inputs},
        "outputs": {
            "sequence_output": "(B, T, D), one vector per token",
            "pooled_output": f"(B, D), {pooled_output}",
        },
    }


def preprocessing(
    pixels: str, resample: str = "bicubic", share: float | None = None
) -> dict[str, Any]:
    """How published models of 224 pixels are given images when they are evaluated.

    Args:
        pixels: Their range or normalization, one of those above.
        resample: How they are resized, a name of `ImagePreprocessing`.
        share: Share of the shorter edge that torchvision's crop in the middle keeps;
            None = no crop, images of any shape are squeezed.

    Returns:
        Fields of a `preprocessor_config.json`.
    """
    mean, std = _STATISTICS[pixels]
    sides = [_SIDE, _SIDE]
    if share is None:
        return make_fields(Steps(sides, None, resample, 1 / 255, mean, std))
    steps = Steps(int(_SIDE / share), sides, resample, 1 / 255, mean, std)
    return {**make_fields(steps), "crop_offset": "round"}


def _of_any_size(pixels: str) -> dict[str, Any]:
    """The normalization alone: images keep their size."""
    mean, std = _STATISTICS[pixels]
    return make_fields(Steps(None, None, "bicubic", 1 / 255, mean, std))


def image_classification(
    pixels: str, resample: str = "bicubic", share: float | None = None
) -> dict[str, Any]:
    """A classifier of images; see `preprocessing`."""
    return {
        "task": "image classification",
        "inputs": {"images": RGB + pixels},
        "outputs": {"logits": "(B, C) float32, one score per class"},
        "preprocessing": preprocessing(pixels, resample, share),
    }


def image_text_similarity(
    pixels: str, text: str, share: float | None = None
) -> dict[str, Any]:
    """A model of pairs of images, with the given range of pixels, and texts."""
    return {
        "task": "image-text similarity",
        "inputs": {"images": RGB + pixels, "token_ids": f"(B, T) int32, {text}"},
        "outputs": {
            "image_embeddings": "(B, E) float32, of length 1",
            "text_embeddings": "(B, E) float32, of length 1",
        },
        "preprocessing": preprocessing(pixels, share=share),
    }


def segmentation(pixels: str, **further_outputs: str) -> dict[str, Any]:
    """A segmenter of images with the given range or normalization of pixels."""
    logits = "(B, H, W, C) float32, one score per pixel and class"
    return {
        "task": "semantic segmentation",
        "inputs": {"images": RGB + pixels},
        "outputs": {"logits": logits, **further_outputs},
        "preprocessing": _of_any_size(pixels),
    }


def detection(**further_outputs: str) -> dict[str, Any]:
    """A detector of objects."""
    return {
        "task": "object detection",
        "inputs": {"images": RGB + IMAGENET},
        "outputs": {
            "boxes": "(B, K, 4) float32, left, top, right, bottom in pixels",
            "scores": "(B, K) float32, in [0, 1]",
            "classes": "(B, K) int32, torchvision's label minus 1; -1 = padding",
            "num_detections": "(B,) int32",
            **further_outputs,
        },
    }


def captioning(**image: str) -> dict[str, Any]:
    """A captioner of images, or of their features."""
    return {
        "task": "image captioning",
        "inputs": {
            **image,
            "decoder_token_ids": "(B, T) int32, the caption after its start token",
        },
        "outputs": {"logits": "(B, T, V), before the softmax"},
    }


def question_answering(grid: str) -> dict[str, Any]:
    """A model that answers questions about images, from a map of these features."""
    return {
        "task": "visual question answering",
        "inputs": {
            "features": grid,
            "token_ids": "(B, T) int32, the question",
            "padding_mask": PADDING_MASK,
        },
        "outputs": {"logits": "(B, A) float32, one score per answer"},
    }

"""`generate_images`: from a caption to images, the best of several candidates.

Legend: N candidates, P codes of an image, h and w its rows and columns of codes, H and
W pixels, C channels.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_attn.checks.arguments import check_positive
from keras_attn.decoding import Sample, generate


class GeneratedImages(NamedTuple):
    """The result of `generate_images`, the best image first.

    Attributes:
        images: float32 (num_images, H, W, C), in [0, 1].
        codes: int32 (num_images, h, w).
        scores: float32 (num_images,), of the scorer, or without one the log-probability
            of the codes.
    """

    images: np.ndarray
    codes: np.ndarray
    scores: np.ndarray


def generate_images(
    dalle,
    dvae,
    tokenizer,
    caption: str,
    num_images: int = 1,
    *,
    num_candidates: int | None = None,
    scorer: Callable[[np.ndarray, str], Any] | None = None,
    strategy: Sample | None = None,
    batch_size: int = 8,
) -> GeneratedImages:
    """Images for a caption: codes are sampled, drawn and scored; the best are kept.

    Args:
        dalle: A model from `build_dalle`.
        dvae: A model from `build_dvae`; or its `decode_model()`, an exported one, or
            any other function from codes int32 (B, h, w) to images (B, H, W, C).
        tokenizer: Has a method `encode(text)`, which returns the ids of a text's
            tokens, as the tokenizers of `keras_attn.data` have it.
        caption: The text.
        num_images: Number of images to return.
        num_candidates: N, number of images to sample and to choose from. Default:
            `num_images`. The paper has 512.
        scorer: A function from images (N, H, W, C) in [0, 1] and the caption to scores
            (N,), higher = better, such as the similarity of CLIP. Needed if there are
            more candidates than images. Without it images are in the order in which
            they were sampled.
        strategy: How codes are sampled. Default: `Sample()`. With a seed the images do
            not depend on `batch_size`.
        batch_size: Number of images that are sampled at once.

    Returns:
        `GeneratedImages(images, codes, scores)`.

    Raises:
        TypeError: If `dalle` or `dvae` is not such a model, `scorer` is not a function,
            or `strategy` does not sample.
        ValueError: If the caption has no token or more than the model has positions;
            there are fewer candidates than images, or more without a `scorer`; the
            models have different codes; or the scores are not N finite numbers.

    Example:
        ```python
        from keras_attn import data, models

        caption = "a large red star"
        tokenizer = data.CharacterTokenizer.train([caption])
        dvae = models.build_dvae(
            image_size=32, vocabulary_size=128, num_groups=3, num_blocks=1, base_dim=16
        )
        dalle = models.create("dalle_small", num_layers=1)
        found = models.generate_images(dalle, dvae, tokenizer, caption, 2)
        ```

    Reference:
        Ramesh et al. 2021, section 2.6 (arXiv:2102.12092).
    """
    check_positive("num_images", num_images)
    check_positive("batch_size", batch_size)
    count = num_images if num_candidates is None else num_candidates
    _check_candidates(count, num_images, scorer)
    strategy = Sample() if strategy is None else strategy
    if not isinstance(strategy, Sample):
        raise TypeError(
            "`strategy` must be `Sample(...)`: other strategies give every candidate "
            f"the same codes. Received: strategy={strategy!r}"
        )
    if not hasattr(dalle, "image_length"):
        raise TypeError(
            "`dalle` must be a model from `build_dalle`. "
            f"Received: dalle={type(dalle).__name__}"
        )
    decode = _decoder(dvae, dalle)
    inputs = _caption_inputs(tokenizer, caption, dalle)
    uniform = strategy.uniform(count, dalle.image_length)
    codes, images, scores = [], [], []
    for start in range(0, count, batch_size):
        numbers = uniform[start : start + batch_size]
        found = generate(
            dalle,
            {name: np.repeat(x, len(numbers), axis=0) for name, x in inputs.items()},
            dalle.image_length,
            strategy=_Drawn(
                strategy.temperature, strategy.top_k, strategy.top_p, drawn=numbers
            ),
        )
        grid = found.token_ids.reshape(-1, *dalle.grid_size)
        codes.append(grid)
        images.append(np.asarray(keras.ops.convert_to_numpy(decode(grid)), "float32"))
        scores.append(found.scores)
    codes, images, scores = (np.concatenate(x) for x in (codes, images, scores))
    if scorer is None:
        return GeneratedImages(images, codes, scores)
    scores = _checked_scores(scorer(images, caption), count)
    best = np.argsort(-scores, kind="stable")[:num_images]
    return GeneratedImages(images[best], codes[best], scores[best])


@dataclass(frozen=True)
class _Drawn(Sample):
    """Samples with random numbers that were drawn before, (B, P)."""

    drawn: Any = field(default=None, compare=False)

    def uniform(self, batch, length):
        """The random numbers of these rows."""
        return self.drawn


def _check_candidates(count, num_images, scorer):
    check_positive("num_candidates", count)
    if count < num_images:
        raise ValueError(
            "`num_candidates` must be at least `num_images`. Received: "
            f"num_candidates={count}, num_images={num_images}"
        )
    if scorer is not None and not callable(scorer):
        raise TypeError(
            "`scorer` must be a function from images and the caption to scores. "
            f"Received: scorer={scorer!r}"
        )
    if count > num_images and scorer is None:
        raise ValueError(
            "`scorer` is needed to choose from more candidates than images. Received: "
            f"num_candidates={count}, num_images={num_images}, scorer=None"
        )


def _decoder(dvae, dalle):
    """The function from codes to images; it must take `dalle`'s codes."""
    is_model = hasattr(dvae, "decode_model")
    decode: Any = dvae.decode_model() if is_model else dvae
    if not callable(decode):
        raise TypeError(
            "`dvae` must be a model from `build_dvae`, or a function from codes to "
            f"images. Received: dvae={type(dvae).__name__}"
        )
    if not is_model:
        return decode
    vocabulary = dvae.get_layer("decoder_input").vocabulary_size
    wanted = dalle.get_layer("image_embedding").vocabulary_size
    grid = tuple(dvae.get_layer("encoder_output").output.shape[1:3])
    if vocabulary != wanted or grid != tuple(dalle.grid_size):
        raise ValueError(
            "`dvae` must have the codes that `dalle` was built for: grid_size="
            f"{tuple(dalle.grid_size)}, image_vocabulary_size={wanted}. Received: a "
            f"dvae with a grid of {grid} codes and vocabulary_size={vocabulary}"
        )
    return decode


def _caption_inputs(tokenizer, caption, dalle):
    """The caption as the inputs of one row, with padding at the end."""
    length = dalle.max_length - dalle.image_length
    ids = np.asarray(tokenizer.encode(caption), "int32")
    if not 0 < len(ids) <= length:
        raise ValueError(
            f"`caption` must have between 1 and {length} tokens, the positions of a "
            f"caption. Received: {len(ids)} tokens, caption={caption!r}"
        )
    padding = (0, length - len(ids))
    return {
        "token_ids": np.pad(ids, padding)[None],
        "padding_mask": np.pad(np.ones(len(ids), bool), padding)[None],
    }


def _checked_scores(scores, count):
    scores = np.asarray(keras.ops.convert_to_numpy(scores), "float32")
    if scores.shape != (count,) or not np.isfinite(scores).all():
        raise ValueError(
            "`scorer` must return one finite number for each image. Received: scores "
            f"of shape {scores.shape} for {count} images"
            + ("" if scores.shape != (count,) else ", not all of them finite")
        )
    return scores

"""Callbacks that write to TensorBoard what a text-to-image model draws."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_attn.viz.callbacks.base import Plots
from keras_attn.viz.generation import plot_codes, plot_generated_images


class CodeMaps(Plots):
    """Writes images, their codes and what these decode to, after each epoch.

    TensorBoard's "Images" tab then has a slider over the epochs for each example `i`,
    under `codes/<i>`; see `viz.plot_codes`. For a model from `build_dvae`. Training is
    not affected.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        images: (B, H, W, C), inputs of the model.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of images drawn, the first of `images`.

    Raises:
        ValueError: At the start of training, if the model has no codes.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        held_out = np.random.uniform(size=(4, 32, 32, 3))
        maps = viz.callbacks.CodeMaps("runs/dvae", held_out)
        # dvae.fit(images, epochs=20, callbacks=[maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        images,
        *,
        every: int = 1,
        max_examples: int = 4,
    ):
        super().__init__(log_dir, every, max_examples)
        self.images = np.asarray(images[:max_examples])

    def on_train_begin(self, logs=None):
        """Makes the encoder and the decoder, and opens the event file."""
        model: Any = self.model
        if not hasattr(model, "encode_model"):
            raise ValueError(
                "`CodeMaps` is for a model from `build_dvae`. "
                f"Received: model={model.name!r}"
            )
        # Kept: each has a compiled function of its own.
        self._halves = model.encode_model(), model.decode_model()
        super().on_train_begin(logs)

    def _figures(self):
        encode, decode = self._halves
        codes = encode.predict_on_batch(self.images)
        drawn = decode.predict_on_batch(codes)
        for index in range(len(self.images)):
            row = slice(index, index + 1)
            figure = plot_codes(self.images[row], codes[row], drawn[row])
            yield f"codes/{index}", figure


class GeneratedImageMaps(Plots):
    """Writes images that are generated for captions, with their scores.

    TensorBoard's "Images" tab then has a slider over the epochs for each caption, under
    `generated/<i>`; see `viz.plot_generated_images`. Training is not affected.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        captions: Texts.
        generate: Function of a caption to images and scores, such as
            `models.generate_images` with its other arguments; a `strategy` with a seed
            makes the epochs comparable.
        show_scores: Whether scores are drawn.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of captions, the first ones.

    Raises:
        TypeError: If `captions` is a single string.

    Example:
        Needs a DALL·E, its VAE and its tokenizer:

        ```python
        import keras
        from keras_attn import data, decoding, models, viz

        dalle, dvae = map(keras.saving.load_model, ("dalle.keras", "dvae.keras"))
        parts = (dalle, dvae, data.load_tokenizer("tokenizer.json"))

        def draw(caption):
            same = decoding.Sample(seed=0)
            return models.generate_images(*parts, caption, 4, strategy=same)

        maps = viz.callbacks.GeneratedImageMaps("runs/dalle", ["a red ring"], draw)
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        captions: Sequence[str],
        generate: Callable[[str], Any],
        *,
        show_scores: bool = True,
        every: int = 1,
        max_examples: int = 4,
    ):
        super().__init__(log_dir, every, max_examples)
        if isinstance(captions, str):
            raise TypeError(
                f"`captions` must be a list of texts. Received: captions={captions!r}"
            )
        self.captions = list(captions)[:max_examples]
        self.generate = generate
        self.show_scores = show_scores

    def _figures(self):
        for index, caption in enumerate(self.captions):
            found = self.generate(caption)
            scores = np.asarray(found.scores)[None] if self.show_scores else None
            figure = plot_generated_images(found.images[None], [caption], scores)
            yield f"generated/{index}", figure

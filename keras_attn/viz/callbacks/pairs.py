"""Callbacks for models of images and texts such as CLIP, which write to TensorBoard.

Legend: P images, Q texts, T tokens, H and W pixels.
"""

import os
from collections.abc import Sequence

import numpy as np

from keras_attn.checks.arguments import check_same_length
from keras_attn.layers import ImagePreprocessing
from keras_attn.viz.callbacks.base import Plots
from keras_attn.viz.images import plot_image_attention
from keras_attn.viz.relevance import image_relevance
from keras_attn.viz.similarity import image_text_similarity, plot_similarity


class SimilarityMaps(Plots):
    """Writes the similarities of images and texts to TensorBoard after each epoch.

    TensorBoard's "Images" tab then has a slider over the epochs under `similarity`; see
    `viz.plot_similarity`. Training is not affected: the model is run on the few pairs
    with `training=False`, outside its compiled step.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        images: (P, H, W, channels), inputs of the model.
        token_ids: (P, T), inputs of the model: text i belongs to image i.
        texts: The P texts, to be read beside the matrix.
        photos: What to draw, (P, h, w, 1 or 3). Default: `images`.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of pairs drawn, the first ones.

    Raises:
        ValueError: If the numbers of images and texts differ.
        TypeError: At the start of training, if the model is not from `build_clip` or
            `build_siglip`.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        texts = ["a dog", "a ball"]
        images, token_ids = np.zeros((2, 224, 224, 3)), np.array([[1, 5, 2], [1, 6, 2]])
        maps = viz.callbacks.SimilarityMaps("runs/clip", images, token_ids, texts)
        # clip.fit(pairs, epochs=20, callbacks=[maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        images,
        token_ids,
        texts: Sequence[str],
        *,
        photos=None,
        every: int = 1,
        max_examples: int = 8,
    ):
        super().__init__(log_dir, every, max_examples)
        photos = images if photos is None else photos
        check_same_length(
            images=images, token_ids=token_ids, texts=texts, photos=photos
        )
        self.images = np.asarray(images[:max_examples])
        self.token_ids = np.asarray(token_ids[:max_examples])
        self.texts = list(texts)[:max_examples]
        self.photos = np.asarray(photos[:max_examples])

    def _figures(self):
        matrices = image_text_similarity(self.model, self.images, self.token_ids)
        yield "similarity", plot_similarity(self.photos, self.texts, matrices)


class RelevanceMaps(Plots):
    """Writes which parts of images resemble which texts to TensorBoard.

    Like `SimilarityMaps`, but under `relevance/<i>` for image i, with a map for each
    text; see `viz.image_relevance` and `viz.plot_image_attention`.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        images: (P, H, W, channels), inputs of the model.
        token_ids: (Q, T), inputs of the model: all texts are compared with every image.
        texts: The Q texts, such as single words: titles of the maps.
        photos: The original photographs, P arrays (h, w, 1 or 3). Default: `images`.
        preprocessing: The layer that made `images` from `photos`, if it crops.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of images drawn, the first ones.

    Raises:
        ValueError: If the numbers of texts or of images differ; at the start of
            training, if the backend is not TensorFlow.
        TypeError: At the start of training, if the model is not from `build_clip` or
            `build_siglip`.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        images,
        token_ids,
        texts: Sequence[str],
        *,
        photos: Sequence[np.ndarray] | None = None,
        preprocessing: ImagePreprocessing | None = None,
        every: int = 1,
        max_examples: int = 4,
    ):
        super().__init__(log_dir, every, max_examples)
        check_same_length(token_ids=token_ids, texts=texts)
        photos = images if photos is None else photos
        check_same_length(images=images, photos=photos)
        self.images = np.asarray(images[:max_examples])
        self.token_ids, self.texts = np.asarray(token_ids), list(texts)
        self.photos = [np.asarray(photo) for photo in photos[:max_examples]]
        self.preprocessing = preprocessing

    def _figures(self):
        maps = image_relevance(self.model, self.images, self.token_ids)
        for index, (photo, heats) in enumerate(zip(self.photos, maps, strict=True)):
            box = None
            if self.preprocessing is not None:
                box = self.preprocessing.visible_box(*photo.shape[:2])
            figure = plot_image_attention(photo, heats, labels=self.texts, box=box)
            yield f"relevance/{index}", figure

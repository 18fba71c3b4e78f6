"""Callbacks that write the attention of texts and images to TensorBoard."""

import os
from collections.abc import Sequence
from typing import cast

import keras
import numpy as np

from keras_attn.viz.callbacks.base import AttentionPlots
from keras_attn.viz.drawing.plots import plot_alignment
from keras_attn.viz.images import image_attention, plot_image_attention


class AttentionMaps(AttentionPlots):
    """Writes plots of a token model's attention to TensorBoard after each epoch.

    TensorBoard's "Images" tab then has a slider over the epochs for each example `i`,
    under `attention/<layer>/<i>`. Training is not affected: the model is run on a few
    examples with `training=False`, outside its compiled step.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        inputs: Inputs of the model, batch first: an array, or a list or dictionary of
            arrays.
        source_tokens: For each example, the labels of the keys.
        target_tokens: For each example, the labels of the queries; for a model
            without a decoder the same as `source_tokens`.
        layer: A regular expression, searched for in the layers' paths. None means the
            paths with "cross_attention" in them, or all if there are none.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of examples drawn, the first of `inputs`.

    Raises:
        ValueError: If the numbers of token lists and examples differ; at the start of
            training, if no layer matches or a list is longer than its scores.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        tokens, ids = [["[CLS]", "a", "dog", "[SEP]"]], np.array([[1, 5, 6, 2]])
        inputs = {"token_ids": ids, "padding_mask": np.ones((1, 4))}
        maps = viz.callbacks.AttentionMaps("runs/dogs", inputs, tokens, tokens)
        # model.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    _cross_attention_first = True

    def __init__(
        self,
        log_dir: str | os.PathLike,
        inputs,
        source_tokens: Sequence[Sequence[str]],
        target_tokens: Sequence[Sequence[str]],
        layer: str | None = None,
        every: int = 1,
        max_examples: int = 4,
    ):
        super().__init__(log_dir, layer, every, max_examples)
        shapes = [np.shape(leaf) for leaf in keras.tree.flatten(inputs)]
        tokens = {"source_tokens": source_tokens, "target_tokens": target_tokens}
        for name, examples in tokens.items():
            if any(shape[:1] != (len(examples),) for shape in shapes):
                raise ValueError(
                    f"`{name}` must have one list of tokens for each example of "
                    f"`inputs`. Received: {name} of length {len(examples)}, inputs "
                    f"of shapes {shapes}"
                )
        self.inputs = keras.tree.map_structure(lambda x: x[:max_examples], inputs)
        self.source_tokens = list(source_tokens)[:max_examples]
        self.target_tokens = list(target_tokens)[:max_examples]

    def _figures(self):
        for path, scores in self._capture(self.inputs).items():
            examples = zip(scores, self.source_tokens, self.target_tokens, strict=True)
            for index, example in enumerate(examples):
                figure = plot_alignment(*example, title=path, wrap=True)
                yield f"attention/{path}/{index}", figure


class ImageAttentionMaps(AttentionPlots):
    """Writes an image model's attention to TensorBoard after each epoch.

    Like `AttentionMaps`, but with the image and one panel per head; see
    `viz.image_attention`.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        images: (B, H, W, channels), inputs of the model.
        layer: A regular expression, searched for in the layers' paths. None = all.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of images drawn, the first of `images`.

    Raises:
        ValueError: At the start of training, if no layer matches or none sees a whole
            image.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        images = np.random.uniform(-1, 1, (4, 224, 224, 3))
        maps = viz.callbacks.ImageAttentionMaps("runs/vit", images, layer="block_11")
        # vit.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        images,
        layer: str | None = None,
        every: int = 1,
        max_examples: int = 4,
    ):
        super().__init__(log_dir, layer, every, max_examples)
        self.images = np.asarray(images[:max_examples])

    def _figures(self):
        model = cast(keras.Model, self.model)
        for path, maps in self._select(image_attention(model, self.images)).items():
            for index, (image, heads) in enumerate(zip(self.images, maps, strict=True)):
                figure = plot_image_attention(image, heads, title=path)
                yield f"attention/{path}/{index}", figure

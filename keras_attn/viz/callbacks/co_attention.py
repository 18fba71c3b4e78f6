"""A callback that writes co-attention of words and regions to TensorBoard.

Legend: B examples, T tokens, R regions, H and W pixels.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np

from keras_attn.checks.arguments import is_whole
from keras_attn.viz.callbacks.base import AttentionPlots, first_examples
from keras_attn.viz.co_attention import (
    capture_co_attention,
    plot_region_words,
    plot_word_regions,
)


class CoAttentionMaps(AttentionPlots):
    """Writes what words and regions of an image attend to in each other.

    TensorBoard's "Images" tab then has a slider over the epochs for each example `i`
    and each block of co-attention, under `words/<block>/<i>`, see
    `viz.plot_word_regions`, and `regions/<block>/<i>`, see `viz.plot_region_words`.
    Training is not affected: the model is run on a few examples with `training=False`,
    outside its compiled step.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        inputs: Inputs of the model by name, batch first. `region_boxes` are shares of
            the image.
        images: The images to draw, B arrays (H, W, 1 or 3).
        tokens: For each example, its real tokens.
        names: For each example, what the detector saw in each real region.
        layer: A regular expression, searched for in the names of the blocks. None =
            all.
        head: Number of the head to draw. None = the mean over all heads.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of examples drawn, the first of `inputs`.

    Raises:
        TypeError: If `inputs` is not a dictionary.
        ValueError: If the numbers of examples differ; at the start of training, if the
            model has no co-attention, no such block or head, or the numbers of tokens
            or names differ from the masks.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        words, ids = [["[CLS]", "a", "dog", "[SEP]"]], np.array([[1, 5, 6, 2]])
        inputs = {"token_ids": ids, "segment_ids": ids * 0, "padding_mask": ids > 0}
        inputs["region_boxes"] = np.array([[[0.1, 0.1, 0.6, 0.9]]])  # One region.
        inputs["region_features"] = np.random.normal(size=(1, 1, 2048))
        inputs["region_padding_mask"], images = np.ones((1, 1)), np.ones((1, 64, 64, 3))
        maps = viz.callbacks.CoAttentionMaps("runs/vqa", inputs, images, words)
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        inputs: Mapping[str, Any],
        images,
        tokens: Sequence[Sequence[str]],
        *,
        names: Sequence[Sequence[str]] | None = None,
        layer: str | None = None,
        head: int | None = None,
        every: int = 1,
        max_examples: int = 2,
    ):
        super().__init__(log_dir, layer, every, max_examples)
        others = {"images": images, "tokens": tokens}
        others |= {} if names is None else {"names": names}
        self.inputs = first_examples(inputs, max_examples, **others)
        if head is not None and not (is_whole(head) and head >= 0):
            raise ValueError(
                f"`head` must be the number of a head, or None. Received: head={head!r}"
            )
        self.images = [np.asarray(image) for image in images[:max_examples]]
        self.tokens = [list(each) for each in tokens[:max_examples]]
        self.names = None if names is None else list(names)[:max_examples]
        self.head = head

    def _figures(self):
        model = cast(keras.Model, self.model)
        is_real = self.inputs["region_padding_mask"].astype(bool)
        examples = capture_co_attention(model, self.inputs)
        for index, (image, tokens) in enumerate(
            zip(self.images, self.tokens, strict=True)
        ):
            height, width = image.shape[:2]
            shares = self.inputs["region_boxes"][index][is_real[index]]
            boxes = shares * np.array([width, height, width, height])
            names = None if self.names is None else self.names[index]
            for block, scores in self._select(examples[index]).items():
                to_regions = self._of_head(scores.to_regions, block)
                figure = plot_word_regions(
                    image, tokens, boxes, to_regions, title=block
                )
                yield f"words/{block}/{index}", figure
                to_words = self._of_head(scores.to_words, block)
                figure = plot_region_words(
                    image, tokens, boxes, to_words, names=names, title=block
                )
                yield f"regions/{block}/{index}", figure

    def _of_head(self, scores, block):
        """The scores of all heads, or of one."""
        if self.head is None:
            return scores
        if self.head >= len(scores):
            raise ValueError(
                f"`head` must be below {len(scores)}, the heads of {block}. "
                f"Received: head={self.head}"
            )
        return scores[self.head]

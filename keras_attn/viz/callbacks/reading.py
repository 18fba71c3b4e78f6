"""A callback that writes to TensorBoard where a reader of words looks."""

import os
from collections.abc import Mapping
from typing import cast

import keras
import numpy as np

from keras_attn.viz.callbacks.base import Plots, take_rows
from keras_attn.viz.reading import plot_reading_attention, reading_attention


class ReadingAttentionMaps(Plots):
    """Writes where a reader looks for each character to TensorBoard after each epoch.

    TensorBoard's "Images" tab then has a slider over the epochs for each example `i`,
    under `reading/<i>`: the image, and a panel for each character, titled with the
    model's prediction given the true characters before it. Training is not affected.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        inputs: Inputs of the model by name, batch first: `images`, `widths` if the
            model takes them, and `decoder_token_ids`, the start token and the true
            characters, then padding.
        tokenizer: The tokenizer of the characters.
        boxes: (B, N, 4), the true boxes of the characters, which are then drawn too.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of images drawn, the first of `inputs`.

    Raises:
        ValueError: At the start of training, as for `viz.reading_attention` and
            `viz.plot_reading_attention`.

    Example:
        ```python
        from keras_attn import data, viz

        words = data.RenderedWords(["dog", "cat"], max_length=8)
        inputs, _ = next(iter(words.dataset("reading", 2, batch_size=2)))
        maps = viz.callbacks.ReadingAttentionMaps("runs/words", inputs, words.tokenizer)
        # reader.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        inputs: Mapping,
        tokenizer,
        *,
        boxes=None,
        every: int = 1,
        max_examples: int = 4,
    ):
        super().__init__(log_dir, every, max_examples)
        self.inputs = dict(take_rows(inputs, slice(max_examples)))
        self.tokenizer = tokenizer
        self.boxes = None if boxes is None else np.asarray(boxes)[:max_examples]

    def _figures(self):
        model = cast(keras.Model, self.model)
        outputs = model(self.inputs, training=False)
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs
        predicted = keras.ops.convert_to_numpy(logits).argmax(-1)
        maps = reading_attention(model, self.inputs)
        for row, ids in enumerate(self.inputs["decoder_token_ids"]):
            word = self.tokenizer.decode(ids[1:])
            # With the end token.
            pieces = [self.tokenizer.pieces[i] for i in predicted[row, : len(word) + 1]]
            width = self.inputs["widths"][row] if "widths" in self.inputs else None
            yield (
                f"reading/{row}",
                plot_reading_attention(
                    self.inputs["images"][row],
                    maps[row],
                    pieces,
                    width=None if width is None else int(width),
                    boxes=None if self.boxes is None else self.boxes[row, : len(word)],
                    title=word,
                ),
            )

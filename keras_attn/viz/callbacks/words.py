"""Callbacks that write to TensorBoard where captioners and answerers look.

Legend: B examples, N heads, T words, L = h·w locations.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import keras
import numpy as np

from keras_attn.checks.arguments import check_pair
from keras_attn.viz.callbacks.base import AttentionPlots, first_examples
from keras_attn.viz.questions import plot_caption_attention, plot_glimpses


class _ImageAndText(AttentionPlots):
    """Attention of words or of a question to the locations of an image."""

    def __init__(
        self, log_dir, inputs, images, texts, layer, grid_size, every, max_examples
    ):
        super().__init__(log_dir, layer, every, max_examples)
        others = texts if images is None else {"images": images, **texts}
        self.inputs = first_examples(inputs, max_examples, **others)
        if images is None:
            images = inputs.get("images")
        if images is None:
            raise ValueError(
                "`images` must be given if `inputs` have none, to draw on. "
                f"Received: inputs of {sorted(inputs)}"
            )
        self.images = np.asarray(images[:max_examples])
        self.grid_size = grid_size
        if grid_size is not None:
            self.grid_size = check_pair("grid_size", grid_size)

    def _scores(self) -> dict[str, np.ndarray]:
        """The scores of the selected layers by their paths, (B, N, T, h, w)."""
        return {
            path: scores.reshape(*scores.shape[:3], *self._grid(scores.shape[-1], path))
            for path, scores in self._capture(self.inputs).items()
        }

    def _grid(self, places: int, path: str) -> tuple[int, int]:
        side = math.isqrt(places)
        rows, columns = self.grid_size or (side, side)
        if rows * columns != places:
            raise ValueError(
                f"`grid_size` must be the rows and columns of the {places} locations "
                f"of {path}; select layers that look at the image by `layer`. "
                f"Received: grid_size={self.grid_size}"
            )
        return rows, columns


class CaptionAttentionMaps(_ImageAndText):
    """Writes where a captioner looks at each word to TensorBoard after each epoch.

    TensorBoard's "Images" tab then has a slider over the epochs for each example `i`,
    under `attention/<layer>/<i>`; see `viz.plot_caption_attention`. Heads are averaged.
    Training is not affected: the model is run on a few examples with `training=False`,
    outside its compiled step.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        inputs: Inputs of the model by name, batch first, captions included.
        words: For each example, the words that the model predicts, at most T.
        images: The images to draw, (B, H, W, 1 or 3). Default: the input of that name.
        layer: A regular expression, searched for in the layers' paths. None means the
            paths with "cross_attention" in them, or all if there are none.
        grid_size: h and w, one number or two. None for a square.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of examples drawn, the first of `inputs`.

    Raises:
        TypeError: If `inputs` is not a dictionary.
        ValueError: If the numbers of examples differ, or images are missing; at the
            start of training, if no layer matches, or its locations do not fill the
            grid.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        inputs = {"images": np.zeros((1, 64, 64, 3)), "decoder_token_ids": [[1, 5, 6]]}
        words = [["a", "dog", "[END]"]]
        maps = viz.callbacks.CaptionAttentionMaps("runs/captions", inputs, words)
        # captioner.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    _cross_attention_first = True

    def __init__(
        self,
        log_dir: str | os.PathLike,
        inputs: dict[str, Any],
        words: Sequence[Sequence[str]],
        *,
        images=None,
        layer: str | None = None,
        grid_size: int | tuple[int, int] | None = None,
        every: int = 1,
        max_examples: int = 4,
    ):
        texts = {"words": words}
        super().__init__(
            log_dir, inputs, images, texts, layer, grid_size, every, max_examples
        )
        self.words = list(words)[:max_examples]

    def _figures(self):
        for path, scores in self._scores().items():
            examples = zip(self.images, self.words, scores.mean(1), strict=True)
            for index, example in enumerate(examples):
                figure = plot_caption_attention(*example, title=path)
                yield f"attention/{path}/{index}", figure


class GlimpseMaps(_ImageAndText):
    """Writes where a model looks for answers to TensorBoard after each epoch.

    Like `CaptionAttentionMaps`, but under `glimpses/<i>`, with all glimpses or hops and
    the most likely answers for example `i`; see `viz.plot_glimpses`.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        inputs: Inputs of the model by name, batch first.
        questions: The question of each example.
        answers: The answers that the model chooses from.
        truths: The true answer of each example.
        images: The images to draw, (B, H, W, 1 or 3). Default: the input of that name.
        predict: Function of the inputs that returns logits (B, A). None calls the
            model, whose output must be the logits, or a dictionary with `logits`.
        layer: A regular expression, searched for in the layers' paths. None = all.
        grid_size: h and w, one number or two. None for a square.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of examples drawn, the first of `inputs`.

    Raises:
        ValueError: As for `CaptionAttentionMaps` and `viz.plot_glimpses`.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        images, token_ids = np.zeros((1, 64, 64, 3)), np.array([[4, 5, 6, 7]])
        inputs = {"images": images, "token_ids": token_ids}
        questions, answers = ["is it red ?"], ["yes", "no"]
        maps = viz.callbacks.GlimpseMaps("runs/vqa", inputs, questions, answers)
        # model.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        inputs: dict[str, Any],
        questions: Sequence[str],
        answers: Sequence[str],
        *,
        truths: Sequence[str] | None = None,
        images=None,
        predict: Callable | None = None,
        layer: str | None = None,
        grid_size: int | tuple[int, int] | None = None,
        every: int = 1,
        max_examples: int = 4,
    ):
        texts = {"questions": questions}
        if truths is not None:
            texts["truths"] = truths
        super().__init__(
            log_dir, inputs, images, texts, layer, grid_size, every, max_examples
        )
        self.questions = list(questions)[:max_examples]
        self.answers = list(answers)
        self.truths = [None] * len(questions) if truths is None else list(truths)
        self.predict = predict

    def _figures(self):
        maps = np.concatenate(
            [
                scores.reshape(len(scores), -1, *scores.shape[-2:])
                for scores in self._scores().values()
            ],
            axis=1,
        )
        predict = self.predict or cast(keras.Model, self.model).predict_on_batch
        logits: Any = predict(self.inputs)
        logits = np.asarray(logits["logits"] if isinstance(logits, dict) else logits)
        chances = np.exp(logits - logits.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        for index, image in enumerate(self.images):
            figure = plot_glimpses(
                image,
                self.questions[index],
                maps[index],
                self.answers,
                chances[index],
                truth=self.truths[index],
            )
            yield f"glimpses/{index}", figure

"""A callback that writes walks and their attention to TensorBoard."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_attn.data.navigation.r2r import WalkExample
from keras_attn.viz.callbacks.base import AttentionPlots, first_examples, take_rows
from keras_attn.viz.walks import plot_walk


class WalkAttentionMaps(AttentionPlots):
    """Writes walks on the floor plan to TensorBoard after each epoch.

    TensorBoard's "Images" tab then has a slider over the epochs for each example `i`,
    under `attention/<layer>/<i>`; see `viz.plot_walk`. Training is not affected: the
    model walks with `training=False`, outside its compiled step.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        inputs: The instructions: `token_ids` and `padding_mask`, (B, S).
        words: For each example, the words of its instruction, at most S.
        examples: What each walker is asked to do, B of them.
        follow: Function from the model to the result of `decoding.walk` for these
            instructions: `walks` and `world_states`.
        layer: A regular expression, searched for in the layers' paths. None = all.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of examples drawn, the first of `inputs`.

    Raises:
        ValueError: If the numbers of `words`, `examples` and instructions differ; at
            the start of training, if the number of walks differs or no layer matches,
            and as for `viz.plot_walk`.

    Example:
        Needs the files of Room-to-Room:

        ```python
        from keras_attn import data, decoding, viz

        walks = data.read_r2r("r2r/R2R_val_unseen.json", "r2r/connectivity")
        inputs = walks.encode(each.instruction for each in walks.examples)
        words = [each.instruction.split() for each in walks.examples]
        shown = (inputs, words, walks.examples)

        def follow(model):
            return decoding.walk(model, inputs, walks.simulator(), 20)

        maps = viz.callbacks.WalkAttentionMaps("runs/walks", *shown, follow)
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        inputs: Mapping,
        words: Sequence[Sequence[str]],
        examples: Sequence[WalkExample],
        follow: Callable[[Any], Any],
        *,
        layer: str | None = None,
        every: int = 1,
        max_examples: int = 4,
    ):
        super().__init__(log_dir, layer, every, max_examples)
        self.inputs = first_examples(inputs, None, words=words, examples=examples)
        self.words = list(words)
        self.examples = list(examples)
        self.follow = follow

    def _figures(self):
        walked = self.follow(self.model)
        if len(walked.walks) != len(self.examples):
            raise ValueError(
                f"`follow` must return {len(self.examples)} walks, one for each of "
                f"`examples`. Received: {len(walked.walks)} walks"
            )
        seen = {**self.inputs, "world_state": walked.world_states}
        shown = take_rows(seen, slice(self.max_examples))
        for path, scores in self._capture(shown).items():
            for index, attention in enumerate(scores):
                example = self.examples[index]
                figure = plot_walk(
                    example.building,
                    example.path,
                    walked.walks[index].path,
                    self.words[index],
                    attention,
                    title=path,
                )
                yield f"attention/{path}/{index}", figure

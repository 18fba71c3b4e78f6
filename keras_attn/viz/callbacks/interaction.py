"""A callback that writes where a robot looks, and its Q-values, to TensorBoard.

Legend: B examples, T steps, P = h·w locations of a map.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_attn.checks.arguments import check_pair
from keras_attn.viz.callbacks.base import Plots, first_examples
from keras_attn.viz.interaction import plot_interaction


class InteractionMaps(Plots):
    """Writes where a robot looks, and its Q-values, to TensorBoard after each epoch.

    TensorBoard's "Images" tab then has a slider over the epochs for each example `i`,
    under `interaction/<i>`; see `viz.plot_interaction`. Training is not affected: the
    network is run on a few episodes outside its compiled step.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        network: A model that returns `q_values` (B, T, N) and `attention_scores`
            (B, cameras, T, P), such as `show_attend_interact` with
            `return_attention_scores=True`. It may be part of the model that is trained.
        inputs: Episodes (B, T, H, W, F) by camera, in the order of the scores. In a
            stack of frames, the last is drawn.
        actions: The names of the actions.
        grid_size: h and w, one number or two.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of episodes drawn, the first of `inputs`.

    Raises:
        TypeError: If `inputs` is not a dictionary.
        ValueError: At the start of training, if `network` lacks these outputs, or the
            number of locations does not match `grid_size`; and as for
            `viz.plot_interaction`.

    Example:
        ```python
        import numpy as np
        from keras_attn import models, viz

        robot = models.build_show_attend_interact(return_attention_scores=True)
        frames = np.random.uniform(size=(2, 6, 198, 198, 8))  # (B, T, H, W, F)
        inputs, grid = {"gray": frames, "depth": frames}, robot.grid_size
        names = ["wait", "look", "wave", "handshake"]
        maps = viz.callbacks.InteractionMaps("runs/greet", robot, inputs, names, grid)
        # agent.fit(batches, epochs=20, callbacks=[player, maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        network: Any,
        inputs: dict[str, Any],
        actions: Sequence[str],
        grid_size: int | tuple[int, int],
        *,
        every: int = 1,
        max_examples: int = 2,
    ):
        super().__init__(log_dir, every, max_examples)
        self.network = network
        frames = first_examples(inputs, max_examples)
        self.inputs = {name: np.asarray(x, "float32") for name, x in frames.items()}
        self.actions = list(actions)
        self.grid_size = check_pair("grid_size", grid_size)

    def _figures(self):
        outputs = self.network.predict_on_batch(self.inputs)
        missing = {"q_values", "attention_scores"} - set(
            outputs if isinstance(outputs, dict) else ()
        )
        if missing:
            raise ValueError(
                "`network` must return `q_values` and `attention_scores`: build it "
                f"with `return_attention_scores=True`. Received: no {sorted(missing)}"
            )
        scores = outputs["attention_scores"]
        rows, columns = self.grid_size
        if scores.shape[-1] != rows * columns:
            raise ValueError(
                f"`grid_size` must be the rows and columns of {scores.shape[-1]} "
                f"locations. Received: grid_size={self.grid_size}"
            )
        for index, values in enumerate(outputs["q_values"]):
            maps = scores[index].reshape(*scores.shape[1:3], rows, columns)
            figure = plot_interaction(
                {name: frames[index, ..., -1:] for name, frames in self.inputs.items()},
                dict(zip(self.inputs, maps, strict=True)),
                values,
                self.actions,
            )
            yield f"interaction/{index}", figure

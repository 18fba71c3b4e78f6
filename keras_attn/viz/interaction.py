"""Where a robot looks at each step, and the values it assigns to its actions.

Legend: T steps, H and W pixels, h and w rows and columns of a map, N actions.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from keras_attn.checks.arguments import check_same_length, is_whole
from keras_attn.viz.drawing.labels import drawable
from keras_attn.viz.drawing.overlays import check_image, check_maps, overlay
from keras_attn.viz.drawing.plots import add_title, new_figure, text_style

_PANEL_INCHES = 1.1
_BAR, _TAKEN = "#7f9fc2", "#3a7d44"


def plot_interaction(
    frames,
    maps,
    q_values,
    actions: Sequence[str],
    *,
    taken: Sequence[int] | None = None,
    title: str | None = None,
) -> Figure:
    """Draws what a robot saw at each step, where it looked, and its Q-values.

    There is one column per step: the frame of each camera with the attention over it,
    and below them a bar for the value of each action, on the same scale for all steps.

    Args:
        frames: The frames of each camera by name, (T, H, W, 1 or 3), of any range.
        maps: The attention to the frames, by the same names, (T, h, w).
        q_values: (T, N).
        actions: The names of the N actions.
        taken: The action of each step, whose bar is green. Default: the best action.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If names, shapes, or the numbers of steps or actions do not match, a
            taken action is not in the list, or values are not finite.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        frames = {"gray": np.random.uniform(size=(3, 32, 32, 1))}  # Three moments.
        frames["depth"] = np.random.uniform(size=(3, 32, 32, 1))
        maps = {camera: np.random.uniform(size=(3, 7, 7)) for camera in frames}
        q_values, actions = np.random.normal(size=(3, 2)), ["wait", "wave"]
        viz.plot_interaction(frames, maps, q_values, actions)
        ```
    """
    values = _check(frames, maps, q_values, actions)
    steps = len(values)
    numbers = values.argmax(-1) if taken is None else np.asarray(taken)
    chosen = numbers.tolist()
    check_same_length(taken=chosen, q_values=values)
    if not all(is_whole(each) and 0 <= each < len(actions) for each in chosen):
        raise ValueError(
            f"`taken` must be numbers of `actions`, each below {len(actions)}. "
            f"Received: taken={chosen}"
        )
    names = list(frames)
    figure = new_figure(
        _PANEL_INCHES * steps + 0.8, _PANEL_INCHES * (len(names) + 1.2) + 0.4
    )
    axes = figure.subplots(len(names) + 1, steps, squeeze=False)
    style = text_style(7)
    for row, name in zip(axes, names, strict=False):
        heats = check_maps(maps[name])
        for step, ax in enumerate(row):
            overlay(ax, check_image(frames[name][step]), heats[step])
        row[0].set_title(drawable(name), loc="left", **style)
    low, high = min(values.min(), 0.0), max(values.max(), 1e-6)
    for step, ax in enumerate(axes[-1]):
        colors = [_TAKEN if n == chosen[step] else _BAR for n in range(len(actions))]
        ax.barh(range(len(actions)), values[step], color=colors, height=0.7)
        ax.set_xlim(low, high)
        ax.set_ylim(len(actions) - 0.5, -0.5)
        ax.set_xticks([])
        labels = [drawable(action) for action in actions] if step == 0 else []
        ax.set_yticks(range(len(labels)), labels, **style)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    add_title(figure, title)
    return figure


def _check(frames, maps, q_values, actions) -> np.ndarray:
    """The Q-values as float32, after a check of everything else."""
    if set(frames) != set(maps) or not frames:
        raise ValueError(
            "`frames` and `maps` must be dictionaries with the same cameras. "
            f"Received: frames of {sorted(frames)}, maps of {sorted(maps)}"
        )
    values = np.asarray(q_values, "float32")
    shape = values.shape
    if len(shape) != 2 or shape[1] != len(actions) or not np.isfinite(values).all():
        raise ValueError(
            "`q_values` must be finite, (steps, actions), one for each of `actions`; "
            f"pass one example of a batch. Received: q_values.shape={shape}, "
            f"{len(actions)} actions"
        )
    for name in frames:
        check_same_length(
            **{"q_values": values, f"frames[{name}]": frames[name]},
            **{f"maps[{name}]": check_maps(maps[name])},
        )
    return values

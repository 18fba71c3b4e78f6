"""Attention that is seen while a text is written, one token after the other."""

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from keras_attn.checks.arguments import check_above_zero
from keras_attn.files.writing import write_atomically
from keras_attn.viz.drawing.plots import TEXT_COLOR, figure_to_array, plot_alignment

_FORMATS = {".gif": "GIF", ".png": "PNG", ".webp": "WEBP"}
_FAINT_COLOR = "#b4bac2"  # Of source tokens that nothing attends to now.
_ROW_COLOR = "#d1495b"
_SHARE_OF_LARGEST = 0.5


def alignment_frames(
    scores: np.ndarray,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    title: str | None = None,
) -> Iterator[Figure]:
    """Draws `plot_alignment` after each target token, as it was written.

    The newest row is framed, and the source tokens that it attends to most stand out.
    The last figure is that of `plot_alignment`.

    Args:
        scores: Probabilities in [0, 1], (T, S).
        source_tokens: At most S labels, of the columns.
        target_tokens: At most T labels, of the rows.
        title: Title of each figure.

    Yields:
        A figure for each target token, and the last one.

    Raises:
        ValueError: As `plot_alignment`, or if `scores` are of several heads.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        scores = np.array([[0.8, 0.1, 0.1], [0.1, 0.3, 0.6]])  # Of two words to three.
        frames = viz.alignment_frames(scores, ["le", "chat", "noir"], ["the", "cat"])
        viz.save_animation(frames, "alignment.gif")
        ```
    """
    scores = np.asarray(scores)
    if scores.ndim != 2:
        raise ValueError(
            "`scores` must be (T, S), of one head. "
            f"Received: scores.shape={scores.shape}"
        )
    for row in range(len(target_tokens)):
        written = np.where(np.arange(len(scores))[:, None] <= row, scores, 0)
        figure = plot_alignment(written, source_tokens, target_tokens, title=title)
        axis = figure.axes[0]
        # What is to come takes its room, so that nothing moves between the figures.
        for label in axis.get_yticklabels()[row + 1 :]:
            label.set_alpha(0)
        _point_at(axis, row, scores[row, : len(source_tokens)])
        yield figure
    yield plot_alignment(scores, source_tokens, target_tokens, title=title)


def _point_at(axis: Axes, row: int, weights: np.ndarray) -> None:
    """Frames a row, and darkens the labels of columns by their share of the largest."""
    frame = Rectangle((-0.5, row - 0.5), len(weights), 1, fill=False, zorder=3)
    frame.set(edgecolor=_ROW_COLOR, linewidth=1.2, clip_on=False)
    axis.add_patch(frame)
    largest = max(weights.max(), 1e-9)
    faint, dark = np.array(to_rgb(_FAINT_COLOR)), np.array(to_rgb(TEXT_COLOR))
    for label, weight in zip(axis.get_xticklabels(), weights, strict=True):
        share = weight / largest
        label.set_color(tuple(faint + share * (dark - faint)))
        if share >= _SHARE_OF_LARGEST:
            label.set_fontweight("bold")


def save_animation(
    figures: Iterable[Figure],
    path: str | os.PathLike,
    *,
    seconds: float = 0.7,
    last_seconds: float = 3.0,
) -> None:
    """Writes figures of one size as a picture that moves, over and over.

    The file is written under a temporary name and renamed, so it is never incomplete.

    Args:
        figures: At least one, such as `alignment_frames` draws.
        path: The file to write, `.gif`, `.webp` or `.png` (APNG). Missing folders are
            created.
        seconds: How long each figure is shown.
        last_seconds: How long the last one is.

    Raises:
        ValueError: If the suffix is another, there is no figure, or they differ in
            size.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(
            f"`path` must end in one of {sorted(_FORMATS)}. "
            f"Received: path={str(path)!r}"
        )
    check_above_zero("seconds", seconds)
    check_above_zero("last_seconds", last_seconds)
    frames = [Image.fromarray(figure_to_array(figure)) for figure in figures]
    if not frames or len({frame.size for frame in frames}) > 1:
        sizes = [frame.size for frame in frames]
        raise ValueError(
            "`figures` must be at least one, and all of one size in pixels. "
            f"Received: sizes={sizes}"
        )
    durations = [round(1000 * seconds)] * (len(frames) - 1)
    durations += [round(1000 * last_seconds)]
    file = io.BytesIO()
    frames[0].save(
        file,
        _FORMATS[suffix],
        save_all=True,
        append_images=frames[1:],
        duration=durations,
        loop=0,
    )
    write_atomically(path, file.getvalue())

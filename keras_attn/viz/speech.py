"""What a speller listens to: a plot of characters over time, below the spectrogram.

Legend: T frames, F filters, S positions of the memory, U characters.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from keras_attn.checks.arguments import check_above_zero, check_positive
from keras_attn.viz.drawing.labels import drawable, font_families
from keras_attn.viz.drawing.plots import (
    TEXT_COLOR,
    add_color_bar,
    add_title,
    check_labels,
    check_scores,
    new_figure,
)

_INCHES_PER_SECOND, _MAX_WIDTH, _MIN_WIDTH = 2.5, 14.0, 5.0
_INCHES_PER_ROW, _SPECTROGRAM_INCHES = 0.22, 1.6


def plot_speech_attention(
    scores: np.ndarray,
    features: np.ndarray,
    target_tokens: Sequence[str],
    *,
    reduction: int = 8,
    hop_seconds: float = 0.010,
    title: str | None = None,
) -> Figure:
    """Draws when each character listens, below the spectrogram of the speech.

    Like figure 2 of Chan et al., with time from left to right in both panels: one row
    per character; darker is more attention, from 0 to 1.

    Args:
        scores: Probabilities in [0, 1], (U, S), or (heads, U, S), whose mean is drawn.
            The last row may belong to an end token.
        features: Log-mel features of the real frames, (T, F).
        target_tokens: At most U labels, of the rows.
        reduction: Frames for each position of the scores, 8 for three halvings.
        hop_seconds: Seconds from the start of one frame to the start of the next.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If `scores` have a different shape or are outside [0, 1], `features`
            are not (T, F) or not finite, or there are more frames or more tokens than
            the scores cover.

    Reference:
        Chan et al. 2016, "Listen, Attend and Spell", figure 2 (arXiv:1508.01211).
    """
    panels = check_scores(scores)
    labels = check_labels("target_tokens", target_tokens, panels.shape[1], "U")
    check_positive("reduction", reduction)
    check_above_zero("hop_seconds", hop_seconds)
    features = _check_features(features, panels.shape[2] * reduction)
    places = -(-len(features) // reduction)
    rows = panels.mean(0)[: len(labels), :places]

    seconds = len(features) * hop_seconds
    width = min(_MAX_WIDTH, max(_MIN_WIDTH, seconds * _INCHES_PER_SECOND))
    height = max(1.2, len(labels) * _INCHES_PER_ROW)
    figure = new_figure(
        width + 1.2, _SPECTROGRAM_INCHES + height + 0.9, layout="constrained"
    )
    above, below = figure.subplots(
        2, 1, sharex=True, height_ratios=(_SPECTROGRAM_INCHES, height)
    )
    above.imshow(
        features.T,
        cmap="magma",
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        extent=(0, seconds, 0, features.shape[1]),
    )
    above.set_ylabel("mel filter", fontsize=9, color=TEXT_COLOR)
    image = below.imshow(
        rows,
        cmap="Blues",
        vmin=0.0,
        vmax=1.0,
        aspect="auto",
        interpolation="nearest",
        extent=(0, places * reduction * hop_seconds, len(labels), 0),
    )
    below.set_xlim(0, seconds)
    below.set_xlabel("time (s)", fontsize=9, color=TEXT_COLOR)
    below.set_yticks(
        np.arange(len(labels)) + 0.5,
        [drawable(label) for label in labels],
        family=font_families(),
        parse_math=False,
    )
    above.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    for axis in (above, below):
        axis.tick_params(labelsize=8, length=2, labelcolor=TEXT_COLOR)
    add_color_bar(figure, image, ax=below, aspect=24, pad=0.02)
    add_title(figure, title, fontsize=11)
    return figure


def _check_features(features, limit: int) -> np.ndarray:
    features = np.asarray(features, np.float32)
    if features.ndim != 2 or 0 in features.shape or not np.isfinite(features).all():
        raise ValueError(
            "`features` must be finite frames (T, F) of one recording, unpadded. "
            f"Received: features of shape {features.shape}"
        )
    if len(features) > limit:
        raise ValueError(
            f"`features` must have at most {limit} frames, which `scores` cover with "
            f"this `reduction`. Received: {len(features)} frames"
        )
    return features

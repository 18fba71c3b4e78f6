"""Attention, one target token after the other."""

import numpy as np
import pytest
from PIL import Image

from keras_attn import viz

SOURCE, TARGET = [*"two"], ["2", "<end>"]
SCORES = np.array([[0.1, 0.7, 0.2], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0]])


def test_a_figure_for_each_token_and_the_whole_one():
    figures = [*viz.alignment_frames(SCORES, SOURCE, TARGET, title="two")]
    assert len(figures) == 3
    shown = []
    for figure in figures:
        axis = figure.axes[0]
        labels = axis.get_yticklabels()
        shown.append([x.get_text() for x in labels if x.get_alpha() != 0])
        drawn = np.asarray(axis.images[0].get_array())
        assert [bool(row.any()) for row in drawn] == [
            text in shown[-1] for text in TARGET
        ]
    assert shown == [["2"], TARGET, TARGET]
    first, second, whole = (
        [x.get_fontweight() == "bold" for x in figure.axes[0].get_xticklabels()]
        for figure in figures
    )
    assert (first, second) == ([False, True, False], [False, True, True])
    assert not any(whole)


@pytest.mark.parametrize("suffix", [".gif", ".png", ".webp"])
def test_an_animation_has_a_frame_for_each_figure(suffix, tmp_path):
    path = tmp_path / "new" / f"alignment{suffix}"
    frames = viz.alignment_frames(SCORES, SOURCE, TARGET)
    viz.save_animation(frames, path, seconds=0.5, last_seconds=2)
    with Image.open(path) as image:
        assert image.n_frames == 3
        durations = []
        for index in range(3):
            image.seek(index)
            image.load()
            durations.append(image.info["duration"])
    assert durations == [500, 500, 2000]


def test_what_cannot_be_animated(tmp_path):
    with pytest.raises(ValueError, match=r"`scores` must be \(T, S\).*\(1, 3, 3\)"):
        next(viz.alignment_frames(SCORES[None], SOURCE, TARGET))
    figure = viz.plot_alignment(SCORES, SOURCE, TARGET)
    larger = viz.plot_alignment(np.zeros([1, 9]), [*"tomorrow?"], ["2"])
    with pytest.raises(ValueError, match=r"all of one size .* sizes=\[\(\d+, \d+\), "):
        viz.save_animation([figure, larger], tmp_path / "a.gif")
    with pytest.raises(ValueError, match=r"`path` must end in .*'a.mp4'"):
        viz.save_animation([figure], "a.mp4")
    with pytest.raises(ValueError, match=r"`figures` must .* sizes=\[\]"):
        viz.save_animation([], tmp_path / "a.gif")
    with pytest.raises(ValueError, match="`seconds`"):
        viz.save_animation([figure], tmp_path / "a.gif", seconds=0)
    assert not [*tmp_path.iterdir()]

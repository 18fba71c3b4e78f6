"""Where a robot looks: the figure, and the same in TensorBoard."""

import numpy as np
import pytest
from event_files import events_of
from matplotlib.colors import to_rgb
from model_cases import B, T, inputs_for, numpy, tiny

from keras_attn.viz import plot_interaction, save_figure
from keras_attn.viz.callbacks import InteractionMaps

RNG = np.random.default_rng(0)
ACTIONS = ["wait", "look", "wave", "$hands$"]
CASE = "show_attend_interact-scores"
FRAMES = {name: RNG.random((T, 13, 17, 1)) for name in ("gray", "depth")}
MAPS = {name: RNG.random((T, 2, 5)) for name in FRAMES}
VALUES = RNG.normal(size=(T, 4))


def plot(**changes):
    """A figure of these arguments."""
    arguments = {
        "frames": FRAMES,
        "maps": MAPS,
        "q_values": VALUES,
        "actions": ACTIONS,
        **changes,
    }
    return plot_interaction(**arguments)


def axes_of(figure):
    """The axes of a figure: two cameras and the values, by T steps."""
    return np.array(figure.axes, object).reshape(3, T)


def test_each_step_has_its_frames_maps_and_values(tmp_path):
    taken = [1, 0, 3]
    figure = plot(taken=taken, title="a $ person")
    axes = axes_of(figure)
    for row, name in zip(axes, FRAMES, strict=False):
        assert row[0].get_title(loc="left") == name
        for step, ax in enumerate(row):
            np.testing.assert_allclose(ax.images[1].get_array(), MAPS[name][step])
    for step, ax in enumerate(axes[-1]):
        widths = [bar.get_width() for bar in ax.patches]
        np.testing.assert_allclose(widths, VALUES[step], rtol=1e-6)
        colors = {to_rgb(bar.get_facecolor()) for bar in ax.patches}
        green = to_rgb(ax.patches[taken[step]].get_facecolor())
        assert len(colors) == 2 and green[1] > max(green[0], green[2])
        assert ax.get_xlim() == axes[-1][0].get_xlim()
    labels = [text.get_text() for text in axes[-1][0].get_yticklabels()]
    assert labels == ACTIONS
    save_figure(figure, tmp_path / "robot.png")
    best = axes_of(plot())[-1]
    for step, ax in enumerate(best):
        bars = [to_rgb(bar.get_facecolor()) for bar in ax.patches]
        assert bars.count(bars[VALUES[step].argmax()]) == 1


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"maps": {"gray": MAPS["gray"]}}, "`frames` and `maps` must be dictionaries"),
        ({"frames": {}, "maps": {}}, "`frames` and `maps` must be dictionaries"),
        ({"q_values": VALUES[:, :3]}, r"`q_values` must .*=\(3, 3\), 4 actions"),
        ({"q_values": VALUES * np.nan}, "`q_values` must be finite"),
        ({"q_values": VALUES[:2]}, "must have the same length"),
        ({"taken": [0, 1, 4]}, r"`taken` must be numbers of `actions`, .*\[0, 1, 4\]"),
        ({"taken": list("abc")}, "`taken` must be numbers of `actions`, each below 4"),
        ({"taken": [1]}, "`taken` and `q_values` must have the same length"),
        ({"maps": {**MAPS, "gray": MAPS["gray"] * np.inf}}, "`maps` must be finite"),
    ],
)
def test_other_values_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plot(**changes)


def test_the_same_in_tensorboard(tmp_path):
    model = tiny(CASE)
    inputs = inputs_for(model)
    maps = InteractionMaps(tmp_path, model, inputs, ACTIONS, (2, 3))
    (_, first), _ = maps._figures()
    scores = numpy(model(inputs))["attention_scores"][0].reshape(2, T, 2, 3)
    axes = axes_of(first)
    drawn = [[ax.images[1].get_array() for ax in row] for row in axes[:2]]
    np.testing.assert_allclose(np.array(drawn), scores, rtol=0, atol=1e-6)
    maps.on_train_begin()
    maps.on_epoch_end(0)
    maps.on_train_end()
    written = events_of(tmp_path)
    assert list(written) == [f"interaction/{index}" for index in range(B)]
    ((_, picture),) = written["interaction/0"]
    assert len(picture) == 3
    with pytest.raises(ValueError, match="must be the rows and columns of 6 locations"):
        list(InteractionMaps(tmp_path, model, inputs, ACTIONS, 2)._figures())
    plain = tiny("show_attend_interact")
    with pytest.raises(ValueError, match=r"no \['attention_scores'\]"):
        list(InteractionMaps(tmp_path, plain, inputs, ACTIONS, (2, 3))._figures())
    with pytest.raises(TypeError, match="`inputs` must be a dictionary"):
        InteractionMaps(tmp_path, model, [1], ACTIONS, (2, 3))  # pyright: ignore

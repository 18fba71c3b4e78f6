"""The picture of a walk, and its callback."""

from types import SimpleNamespace

import numpy as np
import pytest
from event_files import steps_of
from viz.figures import panels, random_attention, tick_labels
from walk_cases import write_r2r

from keras_attn import models
from keras_attn.data import read_r2r
from keras_attn.data.images.vqa import split_words
from keras_attn.decoding import walk
from keras_attn.viz import plot_walk
from keras_attn.viz.callbacks import WalkAttentionMaps

WORDS = ["go", "right", "up", "$1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read_r2r(*write_r2r(tmp_path_factory.mktemp("r2r")))


def test_paths_are_drawn_on_their_floor_beside_the_words(data):
    building = data.examples[0].building
    scores = random_attention(2, 5, 6)
    figure = plot_walk(building, [3, 0, 2], [3, 0, 1], WORDS, scores, title="a walk")
    (words,) = panels(figure)
    drawn = np.asarray(words.images[0].get_array())
    np.testing.assert_allclose(drawn, scores.mean(0)[:3, :4], atol=1e-6)
    assert words.images[0].get_clim() == (0, 1)
    assert tick_labels(words.xaxis) == WORDS
    assert tick_labels(words.yaxis) == ["0", "1", "2"]
    plan = figure.axes[0]
    lines = {line.get_label(): line.get_xydata() for line in plan.lines}
    np.testing.assert_array_equal(lines["true path"], building.positions[[3, 0, 2], :2])
    np.testing.assert_array_equal(lines["taken"], building.positions[[3, 0, 1], :2])
    # The stairs are 3 m above, so neither the viewpoint nor the way to it is shown.
    ways, dots = plan.collections
    assert len(ways.get_segments()) == 3
    np.testing.assert_array_equal(
        dots.get_offsets(), building.positions[[0, 1, 2, 3, 5], :2]
    )
    assert [text.get_text() for text in plan.texts] == ["0", "1", "2"]
    # A walk that did not stop has a last viewpoint without attention.
    unfinished = plot_walk(building, [0], [3, 0, 1], WORDS, scores[:, :2])
    assert tick_labels(panels(unfinished)[0].yaxis) == ["0", "1"]
    upstairs = plot_walk(building, [0, 1, 4], [0], WORDS, scores)
    assert len(upstairs.axes[0].collections[0].get_segments()) == 4


@pytest.mark.parametrize(
    "options, message",
    [
        ({"taken_path": [0, 3, 0, 3]}, "at most 3 viewpoints, one more .*Received: 4"),
        ({"taken_path": ["a"]}, r"`taken_path` must be numbers of .*=\['a'\]"),
        ({"true_path": [0, 0.5]}, r"`true_path` must be numbers of .*=\[0, 0.5\]"),
        ({"taken_path": []}, r"`taken_path` must be numbers of viewpoints .*=\[\]"),
        ({"true_path": [6]}, r"`true_path` must be .*below 6. Received: .*\[6\]"),
        ({"words": WORDS * 2}, "`words` must be a list of 1 to 4"),
        ({"scores": np.full((2, 4), 2.0)}, "`scores` must be probabilities"),
    ],
)
def test_bad_arguments_are_refused(data, options, message):
    arguments = {
        "true_path": [0],
        "taken_path": [0],
        "words": WORDS,
        "scores": random_attention(2, 4),
    }
    with pytest.raises(ValueError, match=message):
        plot_walk(data.examples[0].building, **{**arguments, **options})


def test_walks_are_written_to_tensorboard(data, tmp_path):
    texts = [each.instruction for each in data.examples]
    inputs, simulator = data.encode(texts), data.simulator(5)
    words = [split_words(text) for text in texts]
    model = models.build_listen_attend_walk(
        vocabulary_size=data.vocabulary_size,
        world_dim=simulator.world_dim,
        num_actions=simulator.num_actions,
        embedding_dim=3,
        hidden_dim=3,
        attention_dim=3,
    )
    calls = []

    def follow(given):
        assert given is model
        calls.append(walk(given, inputs, simulator, 2))
        return calls[-1]

    maps = WalkAttentionMaps(
        tmp_path, inputs, words, data.examples, follow, max_examples=1, every=2
    )
    maps.set_model(model)
    maps.on_train_begin()
    for epoch in range(2):
        maps.on_epoch_end(epoch)
    maps.on_train_end()
    assert len(calls) == 2
    assert steps_of(tmp_path) == {"attention/decoder/0": [0]}
    wrong = WalkAttentionMaps(
        tmp_path, inputs, words, data.examples, lambda _: SimpleNamespace(walks=[])
    )
    wrong.set_model(model)
    with pytest.raises(ValueError, match="`follow` must return 4 walks.*Received: 0"):
        wrong.on_train_begin()
    with pytest.raises(ValueError, match="`words` and `examples`.*'words': 3"):
        WalkAttentionMaps(tmp_path, inputs, words[:3], data.examples, follow)

import keras
import numpy as np
import pytest
import tensorflow as tf
from event_files import events_of, steps_of
from viz.attention_model import make_model

from keras_attn.viz.callbacks import AttentionMaps

pytestmark = pytest.mark.compiled

INPUTS = {
    "token_ids": np.arange(21, dtype="int32").reshape(3, 7) % 11,
    "decoder_token_ids": np.arange(15, dtype="int32").reshape(3, 5) % 11,
}
SOURCES = [list("abcdefg"), list("hij"), list("klmno")]
TARGETS = [["A", "B", "C"], ["D", "E"], ["F", "G", "H", "I", "<end>"]]
LABELS = np.arange(15).reshape(3, 5) % 5


def maps(log_dir, **options):
    options = {"source_tokens": SOURCES, "target_tokens": TARGETS, **options}
    return AttentionMaps(log_dir, options.pop("inputs", INPUTS), **options)


def fit(*callbacks, names=("attention",), epochs=1, **options):
    keras.utils.set_random_seed(7)
    model = make_model(*names, **options)
    model.compile(
        keras.optimizers.Adam(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    history = model.fit(
        INPUTS, LABELS, batch_size=2, epochs=epochs, verbose=0, callbacks=callbacks
    )
    return model, history.history


def test_plots_are_written_to_tensorboard_by_tag_and_step(tmp_path):
    fit(maps(tmp_path, every=2), epochs=5, heads=2)
    written = events_of(tmp_path)
    assert set(written) == {f"attention/attention/{i}" for i in range(3)}
    for events in written.values():
        assert [step for step, _ in events] == [0, 2, 4]
        sizes = set()
        for _, (width, height, png) in events:
            picture = tf.io.decode_png(png).numpy()
            assert picture.shape == (int(height), int(width), 3)
            assert picture.std() > 1
            sizes.add(picture.shape)
        # The slider over the epochs needs images of one size.
        assert len(sizes) == 1
        assert len({png for _, (_, _, png) in events}) == 3


def test_training_is_not_affected(tmp_path):
    plain, plain_history = fit(epochs=3)
    watched, history = fit(maps(tmp_path), epochs=3)
    assert history == plain_history
    for one, two in zip(plain.variables, watched.variables, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("names", "layer", "expected"),
    [
        (["block_0_attention", "block_0_cross_attention"], None, ["0_cross"]),
        (["block_0_attention", "block_1_attention"], None, ["0", "1"]),
        (["block_0_cross_attention", "block_1_attention"], "1", ["1"]),
        (["block_0_attention", "block_1_attention"], r"_[01]_a", ["0", "1"]),
    ],
)
def test_layers_are_selected(tmp_path, names, layer, expected):
    fit(maps(tmp_path, layer=layer, max_examples=1), names=names)
    assert set(steps_of(tmp_path)) == {
        f"attention/block_{each}_attention/0" for each in expected
    }


def test_a_second_fit_writes_again(tmp_path):
    callback = maps(tmp_path, max_examples=1)
    model, _ = fit(callback)
    model.fit(
        INPUTS, LABELS, initial_epoch=1, epochs=2, verbose=0, callbacks=[callback]
    )
    assert steps_of(tmp_path)["attention/attention/0"] == [0, 1]


def test_arrays_and_lists_are_inputs_too(tmp_path):
    callback = maps(tmp_path, inputs=list(INPUTS.values()), max_examples=2)
    assert [each.shape for each in callback.inputs] == [(2, 7), (2, 5)]
    callback = maps(tmp_path, inputs=INPUTS["token_ids"], max_examples=2)
    assert callback.inputs.shape == (2, 7)


def test_an_unknown_layer_fails_before_the_first_epoch(tmp_path):
    epochs = []
    seen = keras.callbacks.LambdaCallback(on_epoch_begin=lambda e, _: epochs.append(e))
    match = r"`layer` must match .*\['attention'\]. Received: layer='cross'"
    with pytest.raises(ValueError, match=match):
        fit(seen, maps(tmp_path, layer="cross"))
    assert epochs == []


def test_too_many_tokens_fail_before_the_first_epoch(tmp_path):
    with pytest.raises(ValueError, match="`source_tokens` must be a list of 1 to 7"):
        fit(maps(tmp_path, source_tokens=[list("abcdefgh")] * 3))


@pytest.mark.parametrize("layer", ["(", 3])
def test_layer_must_be_a_regular_expression(tmp_path, layer):
    with pytest.raises(ValueError, match="`layer` must be a regular expression .*"):
        maps(tmp_path, layer=layer)


@pytest.mark.parametrize("name", ["every", "max_examples"])
def test_counts_must_be_positive(tmp_path, name):
    with pytest.raises(ValueError, match=f"`{name}` must be .*{name}=0"):
        maps(tmp_path, **{name: 0})


@pytest.mark.parametrize("name", ["source_tokens", "target_tokens"])
def test_every_example_needs_its_tokens(tmp_path, name):
    with pytest.raises(ValueError, match=f"`{name}` must have one .*of length 2"):
        maps(tmp_path, **{name: [["a"], ["b"]]})
    with pytest.raises(ValueError, match="`source_tokens` must have one list"):
        maps(tmp_path, inputs=5)

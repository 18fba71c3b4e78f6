"""LoRA on whole models: what it reaches, what it fixes, and what a file keeps."""

from typing import Any

import keras
import numpy as np
import pytest
from adaptation_cases import draw_updates
from keras import ops
from training.small_classifier import (
    SIZES,
    VOCABULARY,
    batch,
    classifier,
    fit,
    values,
)

from keras_attn import layers, models
from keras_attn.decoding import Greedy, generate
from keras_attn.export import export, load_runner
from keras_attn.layers.adaptation.low_rank import LowRankUpdate
from keras_attn.training import (
    BackupAndResume,
    adapters_off,
    enable_lora,
    merge_lora,
    set_adapters,
)


@pytest.mark.parametrize(("target", "changed"), [("query", ()), ("value", ("value",))])
def test_an_update_of_a_part_changes_its_columns_alone(target, changed):
    inputs = keras.Input((5, 8))
    attention = layers.MultiHeadAttention(2, 4)
    output, (key, value) = attention(inputs, return_cache=True)
    model = keras.Model(inputs, {"output": output, "key": key, "value": value})
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    before = model(x)
    enable_lora(model, 2, targets=target)
    draw_updates(model)
    after = model(x)
    for name in before:
        is_equal = bool(ops.all(before[name] == after[name]))
        assert is_equal != (name in ("output", *changed)), name


def test_only_updates_and_the_named_layers_train():
    model = classifier()
    before = values(model)
    report = enable_lora(
        model, 2, targets=("query", "contract"), also_train="classifier"
    )
    trained = {weight.path for weight in model.trainable_variables}
    stems = [
        f"block_{i}/{stem}/default/"
        for i in range(2)
        for stem in (
            "attention/query_key_value/kernel",
            "feed_forward/contract/kernel",
        )
    ]
    expected = {stem + name for stem in stems for name in ("a_0", "b_0")}
    assert trained == {*expected, "classifier/kernel", "classifier/bias"}
    assert report.adapted == tuple(
        f"block_{i}/{part}"
        for part in ("attention/query", "feed_forward/contract")
        for i in range(2)
    )
    assert report.num_trained == 2 * (2 * (12 + 12) + 2 * (17 + 12)) + 3 * 12 + 3
    fit(model)
    after = values(model)
    for path, value in before.items():
        changed = (after[path] != value).any()
        assert changed == path.startswith("classifier"), path
    assert all((after[path] != 0).any() for path in expected)
    text = str(report)
    assert "2 × block_*/attention/query" in text
    assert "trained as a whole: classifier" in text


def resnet(**options) -> Any:
    sizes: Any = {"num_blocks": (1, 1), "stem_dim": 4, "image_size": 32}
    return models.create("resnet18", **sizes, num_classes=3, **options)


def fit_images(model, epochs=1):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    images = np.random.default_rng(0).normal(size=(4, 32, 32, 3)).astype("float32")
    model.fit(images, np.array([0, 1, 2, 0]), epochs=epochs, verbose=0)


def test_every_update_of_a_new_resnet_learns(tmp_path):
    """Its blocks end with a scale of 0, which would stop the gradients."""
    model = resnet()
    norms = ["stage_0_block_0_norm_1", "stage_1_block_0_norm_1"]
    report = enable_lora(model, 2, targets=".*conv.*", also_train="classifier")
    assert report.also_trained == ("classifier", *(f"{x}/gamma" for x in norms))
    before = values(model)
    fit_images(model, 3)
    after = values(model)
    moved = {path for path, value in after.items() if (value != before[path]).any()}
    updates = {path for path in before if path.endswith("b_0")}
    assert len(updates) > 4
    assert moved >= {*updates, *(f"{norm}/gamma" for norm in norms)}
    assert not [path for path in moved if "moving" in path or "beta" in path]
    trained = [weight.path for weight in model.trainable_variables]
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.saving.load_model(tmp_path / "model.keras")
    assert [weight.path for weight in loaded.trainable_variables] == trained
    for each in (model, loaded):
        with adapters_off(each):
            assert not np.array(each.get_layer(norms[0]).gamma).any()
        assert np.array(each.get_layer(norms[0]).gamma).all()


def test_a_new_head_of_zeros_learns():
    model = resnet()
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.gamma.assign(np.ones(layer.gamma.shape))
    head = model.get_layer("classifier")
    head.kernel.assign(np.zeros(head.kernel.shape))
    report = enable_lora(model, 2, targets=".*conv.*")
    assert report.also_trained == ("classifier/kernel",)
    before = values(model)
    fit_images(model, 2)
    moved = {x for x, value in values(model).items() if (value != before[x]).any()}
    assert moved >= {path for path in before if path.endswith("b_0")}
    assert "classifier/bias" not in moved


def test_a_norm_that_trains_as_a_whole_has_statistics_of_its_own():
    model = resnet()
    name = "stem_norm"
    norm = model.get_layer(name)
    before = values(model)
    enable_lora(model, 2, targets=".*conv.*", also_train=name)
    fit_images(model)
    learned = values(model)
    assert all((learned[x] != before[x]).any() for x in before if name in x)
    assert norm.trainable
    set_adapters(model, None)
    assert not norm.trainable
    now = values(model)
    for path in (path for path in before if name in path):
        np.testing.assert_array_equal(now[path], before[path])
    set_adapters(model, "default")
    now = values(model)
    for path in (path for path in before if name in path):
        np.testing.assert_array_equal(now[path], learned[path])


@pytest.mark.compiled
def test_a_run_goes_on_from_a_file(tmp_path):
    whole, half = classifier(), classifier()
    half.set_weights(whole.get_weights())
    for model in (whole, half):
        enable_lora(model, 2, also_train="classifier", seed=5)
    fit(whole, 4)
    fit(half, 2)
    half.save(tmp_path / "model.keras")
    rest: Any = keras.saving.load_model(tmp_path / "model.keras")
    assert rest.compiled
    fit(rest, 2)
    expected = values(whole)
    for path, value in values(rest).items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)
    paths = [{w.path for w in model.trainable_variables} for model in (whole, rest)]
    assert paths[0] == paths[1]


def test_blocks_without_updates_stay_fixed_in_a_file(tmp_path):
    model = classifier()
    enable_lora(model, 2, targets="block_1/attention/query")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    expected = [weight.path for weight in model.trainable_variables]
    assert [weight.path for weight in loaded.trainable_variables] == expected
    assert len(expected) == 2


def test_recurrent_layers_stay_fixed_in_a_file(tmp_path):
    sizes: Any = {
        "source_vocabulary_size": VOCABULARY,
        "target_vocabulary_size": VOCABULARY,
        "embedding_dim": 6,
        "hidden_dim": 8,
        "attention_dim": 5,
        "maxout_dim": 4,
    }
    model = models.create("rnnsearch_50", **sizes)
    enable_lora(model, 2, targets="decoder/attention/query")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.trainable_variables) == len(model.trainable_variables) == 2


def test_weights_are_saved_apart(tmp_path):
    model, other = classifier(), classifier()
    for each in (model, other):
        enable_lora(each, 2, seed=5)
    fit(model)
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    for path, value in values(model).items():
        np.testing.assert_array_equal(values(other)[path], value)


def randomize(model):
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(0, 0.3, weight.shape))


def test_a_clone_has_updates_of_its_own():
    model = classifier()
    enable_lora(model, 2, targets=("value", "contract"), also_train="classifier")
    enable_lora(model, 3, targets=("query", "value"), name="second")
    randomize(model)
    twin: Any = keras.models.clone_model(model)
    for weights in ("weights", "trainable_variables"):
        ours, theirs = getattr(twin, weights), getattr(model, weights)
        assert [x.path for x in ours] == [x.path for x in theirs]
        assert not {id(x) for x in ours} & {id(x) for x in theirs}
    twin.set_weights(model.get_weights())
    inputs, _ = batch()
    np.testing.assert_array_equal(twin(inputs), model(inputs))


def test_models_that_share_the_layers_follow():
    encoder = models.build_bert("base", **SIZES)
    model, other = (
        models.build_bert_classifier(encoder, num_classes=3, dropout=0.0)
        for _ in range(2)
    )
    randomize(other)
    inputs, _ = batch()
    before = other.predict(inputs, verbose=0)
    enable_lora(model, 2, targets=("query", "contract"))
    randomize(model)
    adapted = other.predict(inputs, verbose=0)
    assert np.abs(adapted - before).max() > 0.01
    np.testing.assert_allclose(adapted, other(inputs), atol=1e-5)
    merge_lora(model)
    merged = other.predict(inputs, verbose=0)
    # What was traced before would add the updates twice.
    np.testing.assert_allclose(merged, adapted, atol=1e-5)


class Kill(keras.callbacks.Callback):
    """Ends a run at the start of an epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


@pytest.mark.compiled
def test_a_run_goes_on_after_a_kill(tmp_path):
    def run(folder, callbacks=()):
        keras.utils.set_random_seed(0)
        model = classifier()
        enable_lora(model, 2, dropout=0.3, also_train="classifier")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
        backup = BackupAndResume(folder)
        callbacks = [*callbacks, backup]
        model.fit(*batch(), batch_size=3, epochs=4, verbose=0, callbacks=callbacks)
        return values(model)

    expected = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", [Kill()])
    for path, value in run(tmp_path / "killed").items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)


def test_blocks_that_are_computed_twice_learn_the_same():
    with keras.RematScope(mode="full"):
        twice = classifier()
    model = classifier()
    model.set_weights(twice.get_weights())
    for each in (model, twice):
        enable_lora(each, 2, targets=("query", "contract"), seed=3)
        fit(each, 2, "sgd", run_eagerly=True)
    for path, value in values(model).items():
        np.testing.assert_allclose(values(twice)[path], value, atol=1e-6)


@pytest.mark.shipped
@pytest.mark.parametrize("name", ["model", "model.tflite", "model.onnx"])
def test_a_model_with_updates_is_exported_as_it_is(name, tmp_path):
    model = classifier()
    enable_lora(model, 2, name="off", also_train="classifier")
    randomize(model)
    targets = ("query", "contract", "token_embedding")
    enable_lora(model, 2, targets=targets, also_train="classifier")
    randomize(model)
    inputs, _ = batch()
    inputs["padding_mask"] = inputs["padding_mask"].astype(bool)
    export(model, tmp_path / name)
    found = load_runner(tmp_path / name)(inputs)
    merge_lora(model)
    expected = model.predict(inputs, verbose=0)
    assert np.std(expected) > 0.05
    np.testing.assert_allclose(list(found.values())[0], expected, atol=1e-5)


@pytest.mark.compiled
def test_several_updates_are_switched():
    model = classifier()
    inputs, _ = batch()
    base = model.predict(inputs, verbose=0)
    outputs = {}
    for name in ("first", "second"):
        enable_lora(model, 2, name=name)
        fit(model)
        outputs[name] = model.predict(inputs, verbose=0)
        assert {w.path.split("/")[-2] for w in model.trainable_variables} == {name}
    assert (outputs["first"] != outputs["second"]).any()
    # Without compiling anything again.
    for name, expected in outputs.items():
        set_adapters(model, name)
        np.testing.assert_array_equal(model.predict(inputs, verbose=0), expected)
    with adapters_off(model):
        np.testing.assert_array_equal(model.predict(inputs, verbose=0), base)
    np.testing.assert_array_equal(model.predict(inputs, verbose=0), outputs["second"])
    set_adapters(model, ["first", "second"])
    both = model.predict(inputs, verbose=0)
    merge_lora(model)
    assert len(model.trainable_variables) == len(model.weights)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), both, atol=1e-5)
    set_adapters(model, None)
    with pytest.raises(ValueError, match=r"`names` must be names .*this model, \[\]"):
        set_adapters(model, "first")


def test_a_graph_may_switch_updates_and_whole_layers():
    """As the reference of DPO does, in each step of a compiled `fit`."""
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("tf.function compiles for TensorFlow alone")
    x = np.ones((2, 3), "float32")
    model = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(4, name="body"),
            layers.Dense(2, name="head"),
        ]
    )
    base = np.array(model(x))
    for name, value in (("one", 1.0), ("two", 2.0)):
        enable_lora(model, 2, targets="body", also_train="head", name=name)
        for weight in model.trainable_variables:
            weight.assign(keras.ops.full(weight.shape, value))

    @tf.function
    def both():
        with adapters_off(model):
            off = model(x)
        return off, model(x)

    for name in (None, "one", "two", "one"):
        set_adapters(model, name)
        expected = np.array(model(x))
        assert name is None or np.abs(expected - base).max() > 0.1
        off, on = both()
        np.testing.assert_allclose(off, base, atol=1e-6)
        np.testing.assert_allclose(on, expected, atol=1e-6)


def test_generated_text_follows():
    model = models.build_gpt("gpt2_small", **SIZES)
    prompt = {"token_ids": np.array([[3, 1, 4]], "int32")}
    prompt["padding_mask"] = np.ones_like(prompt["token_ids"])

    def text():
        return generate(model, prompt, 8, strategy=Greedy()).token_ids.tolist()

    before = text()
    enable_lora(model, 2, targets="all", seed=0)
    assert text() == before
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    adapted = text()
    assert adapted != before
    with adapters_off(model):
        assert text() == before
    merge_lora(model)
    assert text() == adapted


def test_scale_dropout_and_seed():
    model = classifier()
    enable_lora(model, 4, alpha=6, rslora=True, dropout=0.25, seed=1)
    updates = [x for x in model._flatten_layers() if isinstance(x, LowRankUpdate)]
    assert [float(x.scale) for x in updates] == [pytest.approx(3.0)] * 2
    first = [np.array(w.value) for w in model.trainable_variables]
    # Each A is drawn for itself, within 1/√12, and again the same from the seed.
    assert len({w.tobytes() for w in first if w.any()}) == 4
    assert 0.25 < max(np.abs(w).max() for w in first) <= 12**-0.5
    again = classifier()
    enable_lora(again, 4, seed=1)
    for one, other in zip(first, again.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, other.value)
    for update in updates:
        for kernel in update.b_kernels:
            kernel.assign(np.ones(kernel.shape))
    inputs, _ = batch()
    calls = [np.array(model(inputs, training=True)) for _ in range(2)]
    assert (calls[0] != calls[1]).any()
    calls = [np.array(model(inputs, training=False)) for _ in range(2)]
    np.testing.assert_array_equal(calls[0], calls[1])


@pytest.mark.compiled
def test_it_fits_compiled_by_xla_in_half_precision(set_policy):
    set_policy("mixed_bfloat16")
    model = classifier()
    enable_lora(model, 2)
    fit(model, jit_compile=True)
    for weight in model.trainable_variables:
        assert weight.dtype == "float32"
        assert np.isfinite(np.array(weight.value)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "`rank` must be"),
        ({"rank": 13}, r"`rank` must be at most .* rank=13, .*\(12, 36\).*block_0"),
        ({"alpha": 0}, "`alpha` must be above 0"),
        ({"dropout": 1.0}, "`dropout` must be"),
        ({"targets": "qury"}, "contract, expand, key, .* 'qury' matches none"),
        ({"targets": "position_embedding"}, "LearnedPositionEmbedding"),
        ({"targets": "(query"}, "regular expressions"),
        ({"also_train": "head"}, "`also_train` must be names .*classifier.*'head'"),
        ({"name": "a/b"}, "`name` must consist of letters"),
    ],
)
def test_wrong_arguments_are_named_and_change_nothing(options, message):
    model = classifier()
    before = [weight.path for weight in model.trainable_variables]
    with pytest.raises(ValueError, match=message):
        enable_lora(model, **options)
    assert [weight.path for weight in model.trainable_variables] == before


def test_a_name_is_used_once():
    model = classifier()
    enable_lora(model, 2)
    with pytest.raises(ValueError, match="`name` must be new"):
        enable_lora(model, 2)


def test_a_model_must_be_compiled_again():
    model = classifier()
    fit(model, 1)
    enable_lora(model, 2)
    with pytest.raises(ValueError, match=r"compile\(\)"):
        model.fit(*batch(), verbose=0)

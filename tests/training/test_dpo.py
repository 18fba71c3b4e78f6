"""DPO trains a language model on pairs: its loss, what it reports and learns."""

from typing import Any

import keras
import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from feedback_cases import floats, integers, untyped
from model_cases import numpy

from keras_attn import models
from keras_attn.data import preference_dataset
from keras_attn.losses import dpo_loss
from keras_attn.training import DPO, BackupAndResume, enable_lora

pytestmark = pytest.mark.compiled

skip_module_without_tensorflow("its data is a tf.data pipeline")

PROMPTS = [[11, 12], [14], [17, 18, 19], [12, 14, 15], [16]]
CHOSEN = [[3], [4, 5], [3, 4, 3], [5], [5, 3]]
REJECTED = [[6, 7], [7], [8, 6], [7, 7, 8], [6]]
END = 2


def network(seed=1, dropout=0.5):
    """A tiny GPT-2, with dropout that DPO must switch off."""
    keras.utils.set_random_seed(seed)
    model = models.create(
        "gpt2_small",
        vocabulary_size=23,
        num_layers=1,
        hidden_dim=12,
        num_heads=2,
        mlp_dim=17,
        max_sequence_length=7,
        dropout=dropout,
        attention_dropout=dropout,
    )
    model.set_weights([4 * w for w in model.get_weights()])
    return model


def pairs(batch_size=5, **options):
    """The batches."""
    return preference_dataset(
        PROMPTS,
        CHOSEN,
        REJECTED,
        max_length=7,
        batch_size=batch_size,
        end_token_id=END,
        **options,
    )


def completions(model, which):
    """Of each completion the log-probability and the length, token by token."""
    sums, lengths = [], []
    for prompt, completion in zip(PROMPTS, which, strict=True):
        row = [*prompt, *completion, END]
        logits = numpy(
            model(
                {
                    "token_ids": np.array([row]),
                    "padding_mask": np.ones((1, len(row)), "int32"),
                }
            )
        )
        logits = logits[0].astype("float64")
        total = 0.0
        for place in range(len(prompt), len(row)):
            powers = np.exp(logits[place - 1])
            total += np.log(powers[row[place]] / powers.sum())
        sums.append(total)
        lengths.append(len(completion) + 1)
    return floats(sums), integers(lengths)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kind": "ipo", "beta": 0.2},
        {"kind": "robust", "label_smoothing": 0.2},
        {"kind": "hinge", "reference_free": True},
    ],
    ids=str,
)
def test_the_loss_and_what_is_reported(options):
    model = network()
    trainer = DPO(model, **options)
    trainer.compile(keras.optimizers.SGD(0.0), jit_compile=False)
    old: dict[str, Any] = {}
    beta = options.get("beta", 0.1)
    ratios = [completions(model, which)[0] for which in (CHOSEN, REJECTED)]
    if not options.get("reference_free"):
        reference = [completions(model, which)[0] for which in (CHOSEN, REJECTED)]
        old = dict(
            zip(("reference_chosen", "reference_rejected"), reference, strict=True)
        )
        # The network moves, and its copy does not.
        model.set_weights(network(seed=2).get_weights())
        ratios = [completions(model, which)[0] for which in (CHOSEN, REJECTED)]
        ratios = [a - b for a, b in zip(ratios, reference, strict=True)]
    policy, lengths = zip(
        *(completions(model, which) for which in (CHOSEN, REJECTED)), strict=True
    )
    if options.get("kind") == "ipo":
        old |= zip(("chosen_lengths", "rejected_lengths"), lengths, strict=True)
    wanted = numpy(dpo_loss(*policy, **old, **options)).mean()
    # Dropout is off in training, too.
    for found in (
        trainer.evaluate(pairs(), verbose=0, return_dict=True),
        {
            k: v[0]
            for k, v in trainer.fit(pairs(), shuffle=False, verbose=0).history.items()
        },
    ):
        better, worse = beta * ratios[0], beta * ratios[1]
        expected = {
            "loss": wanted,
            "accuracy": (better > worse).mean(),
            "margin": (better - worse).mean(),
            "chosen_reward": better.mean(),
            "rejected_reward": worse.mean(),
        }
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("jit_compile", [False, True])
def test_it_learns_what_is_preferred_and_saves_it(jit_compile, tmp_path):
    model, other = network(), network(seed=2)
    before = [numpy(w).copy() for w in other.weights]
    trainer = DPO(model, reference=other)
    assert len(trainer.trainable_weights) == len(model.trainable_weights) > 0
    trainer.compile(keras.optimizers.Adam(3e-3), jit_compile=jit_compile)
    history = trainer.fit(
        pairs(2, shuffle_seed=0), epochs=12, shuffle=False, verbose=0
    ).history
    assert history["accuracy"][-1] == 1 and history["margin"][-1] > 1
    assert history["loss"][-1] < history["loss"][0] / 2
    for weight, old in zip(other.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), old)
    trainer.save(tmp_path / "dpo.keras")
    restored = keras.saving.load_model(tmp_path / "dpo.keras")
    assert isinstance(restored, DPO)
    for name in ("network", "reference"):
        pair = [getattr(x, name).get_weights() for x in (trainer, restored)]
        assert all(np.array_equal(a, b) for a, b in zip(*pair, strict=True))
    results = [x.evaluate(pairs(), verbose=0) for x in (trainer, restored)]
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_a_function_may_be_the_reference():
    model, other = network(), network(seed=2)
    calls = []

    def reference(inputs):
        calls.append(set(inputs))
        return other(inputs, training=False)

    found = []
    for given in (reference, other):
        trainer = DPO(model, reference=given)
        trainer.compile(keras.optimizers.SGD(0.0), jit_compile=False)
        found.append(trainer.evaluate(pairs(), verbose=0))
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert calls[0] == {"token_ids", "padding_mask"}


def test_the_base_of_adapters_is_the_reference():
    """Within a function that XLA compiles, too."""
    model, base = network(), network()
    enable_lora(model, rank=2, targets="query_key_value", seed=0)
    with pytest.raises(ValueError, match='"adapters_off" for its base, or a model'):
        DPO(model)
    trainer = DPO(model, reference="adapters_off")
    assert trainer.get_config()["reference"] == "adapters_off"
    trainer.compile(keras.optimizers.SGD(0.3), jit_compile=True)
    trainer.fit(pairs(), epochs=3, shuffle=False, verbose=0)
    found = trainer.evaluate(pairs(), verbose=0, return_dict=True)
    # The updates are on again, and the base is as it was.
    after = [
        np.array(completions(model, CHOSEN)[0]) - completions(base, CHOSEN)[0],
        np.array(completions(model, REJECTED)[0]) - completions(base, REJECTED)[0],
    ]
    assert found["chosen_reward"] == pytest.approx(0.1 * after[0].mean(), abs=1e-4)
    assert found["margin"] == pytest.approx(
        0.1 * (after[0] - after[1]).mean(), abs=1e-4
    )
    assert found["margin"] > 0.01
    with pytest.raises(
        ValueError, match='`reference` may be "adapters_off" only after'
    ):
        DPO(base, reference="adapters_off")


def test_a_run_resumes(tmp_path):
    def run(epochs, folder):
        trainer = DPO(network())
        trainer.compile(keras.optimizers.Adam(1e-3), jit_compile=False)
        backup = BackupAndResume(folder, delete_checkpoint=False)
        data = pairs(2, shuffle_seed=0, epoch=backup.epoch)
        options = {"shuffle": False, "verbose": 0, "callbacks": [backup]}
        return trainer.fit(data, epochs=epochs, **options).history["loss"]

    whole = run(4, tmp_path / "whole")
    run(2, tmp_path / "parts")
    assert run(4, tmp_path / "parts")[-2:] == whole[-2:]


def test_wrong_arguments_are_named():
    model = network()
    with pytest.raises(TypeError, match="`network` must be a Keras model"):
        DPO("gpt2_small")
    with pytest.raises(TypeError, match="`reference` must be a model or a function"):
        untyped(DPO)(model, reference="gpt2_small")
    with pytest.raises(ValueError, match="`reference` must be a model of its own"):
        DPO(model, reference=model)
    with pytest.raises(ValueError, match="`reference` must be None if `reference_"):
        DPO(model, reference=model, reference_free=True)
    with pytest.raises(ValueError, match="`kind` must be one of 'sigmoid'"):
        untyped(DPO)(model, kind="kto")
    with pytest.raises(ValueError, match="`beta` must be a number above 0"):
        DPO(model, beta=-1)
    with pytest.raises(ValueError, match="`label_smoothing` must be in"):
        DPO(model, label_smoothing=0.1)
    trainer = DPO(model)
    trainer.compile("sgd", jit_compile=False)
    (inputs, labels, weights), *_ = pairs().as_numpy_iterator()
    odd = [{k: x[:3] for k, x in inputs.items()}, labels[:3], weights[:3]]
    with pytest.raises(ValueError, match="an even number of rows.*Received: 3 rows"):
        trainer.train_on_batch(*odd)

"""Training that is interrupted and resumed equals uninterrupted training, exactly."""

import itertools
import json
import os
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from backend import skip_module_without_tensorflow
from keras import layers

from keras_attn.data import (
    CharacterTokenizer,
    augment_batches,
    causal_lm_dataset,
    next_sentence_dataset,
    parallel_dataset,
    sample_languages,
    shuffled_dataset,
    three_augment_dataset,
    translation_lm_dataset,
)
from keras_attn.layers import Dropout
from keras_attn.training import (
    BackupAndResume,
    MaskedLMMasking,
    PermutationLMMasking,
    mask_batches,
)
from keras_attn.training.backup import BACKUP_FILE

skip_module_without_tensorflow("it needs the TensorFlow backend")

EPOCHS = 4
ROWS, WIDTH = 13, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, WIDTH)).astype("float32")
Y = (X @ np.array([1.0, -2.0, 0.5], "float32") > 0).astype("float32")


class KilledError(BaseException):
    """Like Ctrl-C, not caught by Keras."""


class Kill(keras.callbacks.Callback):
    """Ends training after a batch, or at the end of an epoch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.at = (epoch, batch)

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.now, batch) == self.at:
            raise KilledError

    def on_epoch_end(self, epoch, logs=None):
        if (epoch, "end") == self.at:
            raise KilledError


def build(seed, policy="float32", optimizer="adam", compiled=False):
    """A model with both kinds of dropout, and seeds of its own."""
    keras.utils.set_random_seed(seed)
    with_dropout = [
        keras.Input((WIDTH,)),
        layers.Dense(7, activation="relu", dtype=policy),
        Dropout(0.3, dtype=policy),
        layers.Dropout(0.2, dtype=policy),
        layers.BatchNormalization(dtype=policy),
        layers.Dense(1, activation="sigmoid", dtype=policy),
    ]
    model = keras.Sequential(with_dropout)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.9)
    rate = 0.01 if optimizer == "sgd" else schedule
    made = keras.optimizers.get(
        {
            "class_name": optimizer,
            "config": {"learning_rate": rate, "use_ema": optimizer == "adamw"},
        }
    )
    model.compile(
        made,
        "binary_crossentropy",
        metrics=["accuracy"],
        run_eagerly=not compiled,
        jit_compile=False,
    )
    return model


def fit(folder, seed, *, kill=None, delete_checkpoint=True, **options):
    """Trains as one process would: returns history, model and callbacks."""
    model = build(seed, **options)
    others = [
        keras.callbacks.EarlyStopping(
            monitor="loss", patience=4, restore_best_weights=True
        ),
        keras.callbacks.ModelCheckpoint(
            folder.parent / f"{folder.name}.best.keras", "loss", save_best_only=True
        ),
    ]
    if options.get("optimizer") == "sgd":
        others.append(keras.callbacks.ReduceLROnPlateau("loss", patience=1, cooldown=1))
    backup = BackupAndResume(
        folder, callbacks=others, delete_checkpoint=delete_checkpoint
    )
    data = shuffled_dataset((X, Y), seed=3, epoch=backup.epoch).batch(5)
    callbacks = [*others, backup]
    if kill is not None:
        # Within an epoch before the backup, at its end after it.
        callbacks.insert(-1 if kill[1] != "end" else len(callbacks), Kill(*kill))
    given = {"validation_data": (X, Y), "callbacks": callbacks}
    history = model.fit(data, epochs=EPOCHS, shuffle=False, verbose=0, **given)
    return history, model, others


def attributes(callbacks):
    """State of the callbacks, as text with every digit."""
    known = [
        {k: v for k, v in vars(c).items() if isinstance(v, float | int | str)}
        for c in callbacks
    ]
    for state in known:
        state.pop("filepath", None)
    return repr(known)


@pytest.mark.compiled
@pytest.mark.parametrize(
    "options",
    [
        # Only one case is compiled, which takes longer than all epochs.
        {"compiled": True},
        pytest.param({"optimizer": "sgd"}, marks=pytest.mark.runs),
        pytest.param(
            {"optimizer": "adamw", "policy": "mixed_bfloat16"}, marks=pytest.mark.runs
        ),
        {"policy": "mixed_float16"},
    ],
    ids=["adam", "sgd", "ema", "float16"],
)
def test_interrupted_training_equals_uninterrupted(tmp_path, options):
    uninterrupted, expected, kept = fit(tmp_path / "a", 1, **options)
    assert uninterrupted.epoch == list(range(EPOCHS))
    folder = tmp_path / "b"
    # The first processes start with the same weights, the others with their own.
    for seed, kill in ((1, (0, 1)), (1, (1, "end")), (8, (2, 2))):
        with pytest.raises(KilledError):
            fit(folder, seed, kill=kill, **options)
    history, model, others = fit(folder, 10, **options)
    assert history.epoch == uninterrupted.epoch
    assert json.dumps(history.history) == json.dumps(uninterrupted.history)
    assert attributes(others) == attributes(kept)
    for ours, theirs in zip(model.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert not folder.exists()
    # The next fit of the model begins at the first epoch.
    assert model.fit(X, Y, epochs=2, verbose=0).epoch == [0, 1]


def test_training_that_stopped_early_stays_stopped(tmp_path):
    def run(seed):
        model = build(seed)
        stopping = keras.callbacks.EarlyStopping("loss", patience=0, mode="max")
        backup = BackupAndResume(
            tmp_path, callbacks=[stopping], delete_checkpoint=False
        )
        data = shuffled_dataset((X, Y), seed=3, epoch=backup.epoch).batch(5)
        return model.fit(
            data,
            epochs=20,
            shuffle=False,
            callbacks=[stopping, backup],
            verbose=0,
        ), model

    stopped, model = run(1)
    assert 1 < len(stopped.epoch) < 20
    again, loaded = run(2)
    assert again.history == stopped.history
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_the_best_weights_are_kept_if_one_is_a_number(tmp_path):
    """Such as the scale of LoRA weights: its array is a NumPy scalar."""
    best = [np.arange(6.0).reshape(2, 3), np.float32(0.3)]
    model = build(1)
    for process in (1, 2):
        stopping = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
        backup = BackupAndResume(
            tmp_path, callbacks=[stopping], delete_checkpoint=False
        )
        backup.set_model(model)
        backup.set_params({"epochs": 2})
        backup.on_train_begin()
        if process == 1:
            stopping.best_weights = best
            backup.on_epoch_end(0, {"loss": 1.0})
    found = stopping.best_weights
    assert len(found) == 2 and found[1] == best[1] and found[1].dtype == np.float32
    np.testing.assert_array_equal(found[0], best[0])


def test_a_backup_is_kept_until_it_is_deleted(tmp_path):
    first, model, _ = fit(tmp_path / "a", 1, delete_checkpoint=False)
    assert [path.name for path in (tmp_path / "a").iterdir()] == [BACKUP_FILE]
    again, loaded, _ = fit(tmp_path / "a", 2, delete_checkpoint=False)
    assert again.history == first.history
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])
    BackupAndResume(tmp_path / "a").delete()
    assert not (tmp_path / "a").exists()
    BackupAndResume(tmp_path / "a").delete()


def test_a_partial_backup_is_ignored(tmp_path, monkeypatch):
    uninterrupted, _, _ = fit(tmp_path / "a", 1)
    folder = tmp_path / "b"
    with pytest.raises(KilledError):
        fit(folder, 1, kill=(1, "end"))
    # A process that is killed while writing leaves a partial file.
    whole = (folder / BACKUP_FILE).read_bytes()
    partial = folder / f".{BACKUP_FILE}-12345678.partial"
    partial.mkdir()
    (partial / BACKUP_FILE).write_bytes(whole[: len(whole) // 2])
    history, _, _ = fit(folder, 2)
    assert history.history == uninterrupted.history
    assert not folder.exists()


@pytest.fixture(scope="module")
def backup(tmp_path_factory):
    """The bytes of a backup after one epoch."""
    folder = tmp_path_factory.mktemp("backup")
    with pytest.raises(KilledError):
        fit(folder, 1, kill=(0, "end"))
    return (folder / BACKUP_FILE).read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"PK" + data[2:],
        lambda data: data[:-50] + b"\xff" + data[-49:],
    ],
    ids=["empty", "start", "half", "end", "longer", "magic", "changed"],
)
def test_a_damaged_backup_is_refused(tmp_path, backup, damage):
    path = tmp_path / BACKUP_FILE
    path.write_bytes(damage(backup))
    message = r"is damaged .*Delete it, and training starts .*training\.backup'"
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, 2)
    assert path.exists()


def test_a_backup_of_another_run_is_refused(tmp_path, backup):
    (tmp_path / BACKUP_FILE).write_bytes(backup)
    with pytest.raises(ValueError, match="a different model or optimizer: it has"):
        fit(tmp_path, 2, optimizer="adamw")
    model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(2)])
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match=r"callbacks \['EarlyStopping', .* has \[\]"):
        model.fit(X, X[:, :2], callbacks=[BackupAndResume(tmp_path)], verbose=0)
    os.rename(tmp_path / BACKUP_FILE, tmp_path / "latest.weights.h5")
    with pytest.raises(ValueError, match="not written by `BackupAndResume`"):
        fit(tmp_path, 2)
    (tmp_path / "latest.weights.h5").unlink()
    (tmp_path / BACKUP_FILE).mkdir()
    with pytest.raises(ValueError, match="not written by `BackupAndResume`"):
        fit(tmp_path, 2)


TEXTS = [f"{'ab' * (n % 5 + 1)}c{n % 3}" for n in range(23)]
IDS = [[1 + (i * n) % 7 for i in range(n % 5 + 2)] for n in range(23)]
SIZES: dict[str, Any] = {"max_length": 20, "batch_size": 4}
IMAGES = RNG.uniform(0, 255, (23, 12, 8, 3)).astype("float32")


def pairs(epoch):
    tokenizer = CharacterTokenizer.train(TEXTS)
    return parallel_dataset(
        TEXTS,
        TEXTS,
        tokenizer,
        tokenizer,
        batch_size=4,
        max_length=12,
        bucket_boundaries=[6, 9],
        shuffle_seed=2,
        epoch=epoch,
    )


def translation_pairs(epoch):
    return translation_lm_dataset(
        IDS,
        IDS,
        source_language=0,
        target_language=1,
        end_token_id=9,
        shuffle_seed=2,
        epoch=epoch,
        **SIZES,
    )


def masked(masking):
    def make(epoch):
        return mask_batches(translation_pairs(epoch), masking, seed=5, epoch=epoch)

    return make


def images(epoch):
    rows = (IMAGES, np.arange(23) % 5)
    return shuffled_dataset(rows, seed=4, epoch=epoch).batch(6)


DATASETS = {
    "shuffled": images,
    "pairs": pairs,
    "causal": lambda epoch: causal_lm_dataset(
        np.arange(91), block_length=7, batch_size=3, shuffle_seed=2, epoch=epoch
    ),
    "sentences": lambda epoch: next_sentence_dataset(
        [IDS[:9], IDS[9:15], IDS[15:]],
        cls_token_id=8,
        separator_token_id=9,
        seed=2,
        epoch=epoch,
        **SIZES,
    ),
    "translations": translation_pairs,
    "masked": masked(MaskedLMMasking(11, 10, special_token_ids=[0, 9], seed=1)),
    "permuted": masked(PermutationLMMasking(special_token_ids=[0, 9], seed=1)),
    "languages": lambda epoch: sample_languages(
        [translation_pairs(epoch), translation_pairs(epoch)],
        [3, 1],
        seed=7,
        epoch=epoch,
    ).take(6),
    "augmented": lambda epoch: augment_batches(
        images(epoch),
        [layers.RandomFlip("horizontal"), layers.RandomTranslation(0.2, 0.2)],
        seed=3,
        epoch=epoch,
    ),
    "three_augment": lambda epoch: three_augment_dataset(
        images(epoch), image_size=(12, 8), num_classes=5, seed=3, epoch=epoch
    ),
}


def values(dataset):
    """All elements of a dataset, as bytes."""
    return [
        [np.asarray(part).tobytes() for part in tf.nest.flatten(batch)]
        for batch in dataset.as_numpy_iterator()
    ]


@pytest.mark.compiled
@pytest.mark.parametrize("name", DATASETS)
def test_the_data_of_an_epoch_depend_on_its_number(name):
    epoch = tf.Variable(tf.zeros((), tf.int64))
    dataset = DATASETS[name](epoch)
    uninterrupted = []
    for number in range(3):
        epoch.assign(number)
        uninterrupted.append(values(dataset))
    for one, other in itertools.combinations(uninterrupted, 2):
        assert one != other
    # Another process, which starts with the last epoch and reads it twice.
    epoch.assign(2)
    keras.utils.set_random_seed(4)
    again = DATASETS[name](epoch)
    next(iter(again))
    assert values(again) == uninterrupted[2]
    assert values(DATASETS[name](1)) == uninterrupted[1]
    counted = DATASETS[name](None)
    assert counted.cardinality() == dataset.cardinality()
    first, second = values(counted), values(counted)
    assert first != second
    again = DATASETS[name](None)
    assert [values(again), values(again)] == [first, second]

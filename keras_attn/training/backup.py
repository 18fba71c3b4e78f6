"""Training that continues after a kill as if it had never been stopped.

Everything that the next epoch depends on is in one file, which is replaced as a whole:
a kill at any moment leaves either the state after one epoch or that after the next.

    file    magic | length of the header, 8 bytes | header, JSON | arrays | SHA-256
    header  epochs and their logs, state of callbacks, name, type and shape of arrays
"""

import contextlib
import hashlib
import inspect
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np
import tensorflow as tf

from keras_attn.file_writing import open_atomically, remove_leftovers

BACKUP_FILE = "training.backup"

_MAGIC = b"keras_attn training backup 1\n"
_LENGTH_BYTES = 8
_DIGEST_BYTES = hashlib.sha256().digest_size
_CHUNK_BYTES = 1 << 20
_KERAS_FILE = "latest.weights.h5"
# What reading a header of the wrong types or sizes may end in.
_MALFORMED = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    SyntaxError,
    StopIteration,
)


class BackupAndResume(keras.callbacks.Callback):
    """Saves the state of training after each epoch, and resumes from it.

    A `model.fit` that was killed and is started again in a new process, with the same
    arguments, ends with the losses of one that was never stopped, to the last digit
    (on the same machine, with as many threads): an epoch that was cut short is trained
    again. Kept are the model's variables, those of its dropout layers' seeds among
    them, the optimizer's, the state of other callbacks, and the logs.

    The order of the data follows from `seed` and `epoch` where its dataset is given
    `epoch=backup.epoch`, as all datasets of `keras_attn.training` and
    `keras_attn.data` take it. Arrays that `model.fit` shuffles itself, and
    `Dataset.shuffle`, begin anew with the order of the first epoch instead; see
    `shuffled_dataset`. So does a dataset that `steps_per_epoch` reads on from epoch to
    epoch: let an epoch be one pass over it.

    Pass it as the last callback: what others do at the end of an epoch is then part of
    the backup.

    Args:
        folder: Where the backup is written. One folder for each run.
        callbacks: Callbacks of the same `model.fit` that remember something from epoch
            to epoch, such as `EarlyStopping`, `ReduceLROnPlateau` or
            `ModelCheckpoint`. Of their attributes those are kept that change, are not
            arguments of the constructor, and are numbers, strings or lists of these or
            of arrays.
        delete_checkpoint: Whether the backup is deleted when training is complete.
            False keeps it until `delete` is called, so that a process that is killed
            before it saved its model does not train again.

    Attributes:
        epoch: `tf.Variable`, the number of the current epoch, for datasets.
        path: File of the backup.

    Raises:
        ValueError: when training begins, for a backup that is damaged or of another
            model, optimizer or list of callbacks.

    Example:
        ```python
        stopping = keras.callbacks.EarlyStopping(patience=3)
        backup = BackupAndResume("runs/gpt/backup", callbacks=[stopping])
        train = causal_lm_dataset(
            token_ids,
            block_length=128,
            batch_size=32,
            shuffle_seed=0,
            epoch=backup.epoch,
        )
        model.fit(train, epochs=20, shuffle=False, callbacks=[stopping, backup])
        ```
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        delete_checkpoint: bool = True,
    ):
        super().__init__()
        self.path = Path(folder) / BACKUP_FILE
        self.callbacks = list(callbacks)
        self.delete_checkpoint = delete_checkpoint
        # Read by `tf.data`, which runs on the CPU.
        with tf.device("CPU:0"):
            start = tf.zeros((), tf.int64)
            self.epoch = tf.Variable(start, trainable=False)
        self._before = [dict(vars(callback)) for callback in self.callbacks]
        self._epochs: list[int] = []
        self._logs: list[dict[str, Any]] = []
        self._restored = False

    def on_train_begin(self, logs=None):
        """Restores the backup, if there is one."""
        self._epochs, self._logs = [], []
        self._restored = False
        if self._exists():
            self._restore()
            self._restored = True

    def on_epoch_begin(self, epoch, logs=None):
        """Tells datasets which epoch it is."""
        self._fill_history()
        self.epoch.assign(epoch)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the backup."""
        self._epochs.append(epoch)
        self._logs.append({name: _plain(value) for name, value in (logs or {}).items()})
        self._save()

    def on_train_end(self, logs=None):
        """Deletes the backup, unless it is to be kept."""
        self._fill_history()
        if self.delete_checkpoint:
            self.delete()

    def delete(self) -> None:
        """Deletes the backup, and its folder if nothing else is in it."""
        remove_leftovers(self.path)
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()

    def _fill_history(self):
        """Puts the epochs of earlier processes in front of `model.fit`'s history."""
        if not self._restored:
            return
        self._restored = False
        # Else a second `fit` of this model would start there too.
        self.model._initial_epoch = None
        history = self.model.history
        history.epoch = list(self._epochs)
        history.history = {}
        for logs in self._logs:
            for name, value in logs.items():
                history.history.setdefault(name, []).append(value)

    def _exists(self) -> bool:
        """Whether there is a backup; raises for what can't be one."""
        if self.path.is_file():
            return True
        old = self.path.with_name(_KERAS_FILE)
        for path in (self.path, old):
            if path.exists():
                raise self._error(path, "is no backup that `BackupAndResume` wrote")
        return False

    def _variables(self) -> list[tuple[str, Any]]:
        """What is saved of the model and its optimizers, in a fixed order."""
        optimizers = {
            name: value
            for name, value in vars(self.model).items()
            if isinstance(value, keras.optimizers.Optimizer)
        }
        own = self.model.optimizer
        if own is not None and not own.built:
            own.build(self.model.trainable_variables)
        found = [(variable.path, variable) for variable in self.model.variables]
        for name, optimizer in sorted(optimizers.items()):
            found += [(f"{name}/{part.path}", part) for part in optimizer.variables]
        return found

    def _save(self):
        arrays = [
            (name, keras.ops.convert_to_numpy(variable))
            for name, variable in self._variables()
        ]
        states = []
        for index, callback in enumerate(self.callbacks):
            plain, lists = _state(callback, self._before[index])
            counts = {name: len(parts) for name, parts in lists.items()}
            states.append(
                {"class": type(callback).__name__, "state": plain, "arrays": counts}
            )
            arrays += [
                (f"{index}/{name}", part)
                for name, parts in lists.items()
                for part in parts
            ]
        header = {
            "epochs": self._epochs,
            "logs": self._logs,
            "stopped": bool(self.model.stop_training),
            "callbacks": states,
            "arrays": [[name, str(a.dtype), list(a.shape)] for name, a in arrays],
        }
        with open_atomically(self.path) as file:
            _write(file, header, [array for _, array in arrays])

    def _restore(self):
        with self.path.open("rb") as file, self._explained():
            header = _read_header(file)
            specs = [
                (name, np.dtype(kind), tuple(shape))
                for name, kind, shape in header["arrays"]
            ]
            classes = [state["class"] for state in header["callbacks"]]
            plain = [dict(state["state"]) for state in header["callbacks"]]
            counts = [dict(state["arrays"]) for state in header["callbacks"]]
            epochs = [int(epoch) for epoch in header["epochs"]]
            logs = [dict(logs) for logs in header["logs"]]
            next_epoch = self.params["epochs"] if header["stopped"] else epochs[-1] + 1
            self._check_fits(specs, classes, sum(sum(c.values()) for c in counts))
            arrays = _arrays(file, specs)
            for _, variable in self._variables():
                variable.assign(next(arrays))
            for callback, state, lists in zip(
                self.callbacks, plain, counts, strict=True
            ):
                for name, count in lists.items():
                    state[name] = [next(arrays) for _ in range(count)]
                vars(callback).update(state)
        self._epochs, self._logs = epochs, logs
        self.model._initial_epoch = next_epoch

    def _check_fits(self, specs, classes, num_others):
        expected = [type(callback).__name__ for callback in self.callbacks]
        if classes != expected:
            raise self._error(
                self.path,
                f"is of a run with the callbacks {classes}, this one has {expected}",
            )
        variables = self._variables()
        if len(specs) != len(variables) + num_others:
            raise self._error(
                self.path,
                "is of another model or optimizer: it has "
                f"{len(specs) - num_others} variables, this one {len(variables)}",
            )
        for (name, variable), spec in zip(variables, specs, strict=False):
            own = np.dtype(keras.backend.standardize_dtype(variable.dtype))
            if spec[1:] != (own, tuple(variable.shape)):
                raise self._error(
                    self.path,
                    f"is of another model or optimizer: {name} is {own} "
                    f"{tuple(variable.shape)}, in the backup {spec[0]} is {spec[1]} "
                    f"{spec[2]}",
                )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Says of what is wrong in a file which file it is, and what to do."""
        try:
            yield
        except _BackupError:
            raise
        except _MALFORMED as error:
            raise self._error(
                self.path, f"is damaged ({type(error).__name__}: {error})"
            ) from error

    def _error(self, path: Path, problem: str) -> "_BackupError":
        return _BackupError(
            f"The backup {problem}. Delete it, and training starts from the first "
            f"epoch. Received: {str(path)!r}"
        )


class _BackupError(ValueError):
    """A backup that can't be restored; the text says why and what to do."""


def _plain(value) -> Any:
    """A number as JSON takes it."""
    if isinstance(value, str | int | float | bool | None):
        return value
    return np.asarray(value).tolist()


def _state(callback, before: dict) -> tuple[dict, dict]:
    """What a callback has changed of itself: what JSON takes, and lists of arrays."""
    plain, lists = {}, {}
    # What the caller decides is taken from the caller: Keras changes the sign of
    # `min_delta` once in each process.
    given = inspect.signature(type(callback).__init__).parameters
    for name in vars(callback).keys() - given.keys() - {"_model", "params"}:
        value = vars(callback)[name]
        if isinstance(value, np.generic):
            value = value.item()
        is_list = isinstance(value, list) and len(value) > 0
        if is_list and all(isinstance(part, np.ndarray) for part in value):
            lists[name] = value
        elif _is_plain(value) and (name not in before or before[name] != value):
            plain[name] = value
    return plain, lists


def _is_plain(value) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def _write(file: BinaryIO, header: dict, arrays: Sequence[np.ndarray]) -> None:
    digest = hashlib.sha256()

    def put(data):
        digest.update(data)
        file.write(data)

    text = json.dumps(header).encode()
    put(_MAGIC)
    put(len(text).to_bytes(_LENGTH_BYTES, "little"))
    put(text)
    for array in arrays:
        # As bytes: the types of 16 bits that NumPy does not know have no buffer.
        put(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    file.write(digest.digest())


def _read_header(file: BinaryIO) -> dict:
    """Checks the whole file, then reads its header; arrays come next."""
    size = os.fstat(file.fileno()).st_size
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it begins otherwise")
    file.seek(0)
    digest, left = hashlib.sha256(), size - _DIGEST_BYTES
    while left > 0:
        chunk = file.read(min(left, _CHUNK_BYTES))
        digest.update(chunk)
        left -= len(chunk)
    if left < 0 or file.read() != digest.digest():
        raise ValueError("its checksum is another")
    file.seek(len(_MAGIC))
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > size:
        raise ValueError("its header is longer than the file")
    return json.loads(file.read(length))


def _arrays(file: BinaryIO, specs) -> Iterator[np.ndarray]:
    """Reads one array after the other."""
    size = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
    for _, kind, shape in specs:
        length = math.prod(shape) * kind.itemsize
        if not 0 <= length <= size - file.tell():
            raise ValueError("its arrays are larger than the file")
        data = file.read(length)
        yield np.frombuffer(data, np.uint8).view(kind).reshape(shape)

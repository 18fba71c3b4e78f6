"""Training that resumes after a kill as if it had never been interrupted.

Everything that the next epoch depends on is in one file, which is replaced atomically:
a kill at any moment leaves the state after one epoch or the state after the next. Its
header has the epochs and their logs, the state of callbacks, and the name, dtype and
shape of each array; `backup_file` defines the format.
"""

import contextlib
import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_attn.distribution.processes import is_writer, whole_array
from keras_attn.files.writing import open_atomically, remove_leftovers
from keras_attn.training.backup_file import read_arrays, read_header, write_backup

BACKUP_FILE = "training.backup"

_KERAS_FILE = "latest.weights.h5"  # Written by `keras.callbacks.BackupAndRestore`.
# Errors of reading a header with wrong types or sizes.
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

    A `model.fit` that was killed and is run again in a new process, with the same
    arguments, ends with exactly the losses of an uninterrupted one (on the same
    machine, with the same number of threads); an interrupted epoch is repeated. The
    backup holds the variables of the model, including the seeds of its dropout layers,
    the variables of the optimizer, the state of other callbacks, and the logs.

    The order of the data depends only on `seed` and `epoch` if its dataset is given
    `epoch=backup.epoch`, which all datasets of `keras_attn.training` and
    `keras_attn.data` take. Arrays that `model.fit` shuffles itself, and
    `Dataset.shuffle`, restart with the order of the first epoch instead; see
    `shuffled_dataset`. So does a dataset that `steps_per_epoch` divides into epochs:
    let each epoch be one pass over the dataset.

    Of several processes (`keras.distribution`, on JAX) the first writes the backup, and
    all resume from it: give them a folder that all see.

    Pass it as the last callback, so that the backup includes what the other callbacks
    do at the end of an epoch.

    Args:
        folder: Folder of the backup. Each run needs its own.
        callbacks: Callbacks of the same `model.fit` that keep state between epochs,
            such as `EarlyStopping`, `ReduceLROnPlateau` or `ModelCheckpoint`. Their
            attributes are saved if they change, are not constructor arguments, and are
            numbers, strings, or lists of these or of arrays.
        delete_checkpoint: Whether to delete the backup when training is complete.
            False keeps it until `delete` is called, so that a process that is killed
            before it saves its model need not train again.

    Attributes:
        epoch: `tf.Variable` with the current epoch, for datasets.
        path: File of the backup.

    Raises:
        ValueError: When training begins, if the backup is damaged, or comes from a run
            with a different model, optimizer or list of callbacks.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_attn import training

        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        backup = training.BackupAndResume("runs/gpt/backup")
        model.fit(np.ones((8, 2)), np.ones((8, 1)), epochs=2, callbacks=[backup])
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
        # `tf.data` reads it, on the CPU.
        with tf.device("CPU:0"):
            start = tf.zeros((), tf.int64)
            self.epoch = tf.Variable(start, trainable=False)
        self._initial_state = [dict(vars(callback)) for callback in self.callbacks]
        # Epochs of this and of earlier processes, and their logs.
        self._epochs: list[int] = []
        self._logs: list[dict[str, Any]] = []
        self._restored = False

    def on_train_begin(self, logs=None):
        """Restores the backup, if one exists."""
        self._epochs, self._logs = [], []
        self._restored = False
        if self._exists():
            self._restore()
            self._restored = True

    def on_epoch_begin(self, epoch, logs=None):
        """Sets the epoch of the datasets."""
        self._fill_history()
        self.epoch.assign(epoch)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the backup."""
        self._epochs.append(epoch)
        self._logs.append(
            {name: _as_json(value) for name, value in (logs or {}).items()}
        )
        self._save()

    def on_train_end(self, logs=None):
        """Deletes the backup, unless `delete_checkpoint` is False."""
        self._fill_history()
        if self.delete_checkpoint:
            self.delete()

    def delete(self) -> None:
        """Deletes the backup, and its folder if that is then empty."""
        if not is_writer():
            return
        remove_leftovers(self.path)
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()

    def _fill_history(self):
        """Adds the epochs of earlier processes to the history of `model.fit`."""
        if not self._restored:
            return
        self._restored = False
        # Otherwise a second `fit` of this model would start at that epoch too.
        self.model._initial_epoch = None
        history = self.model.history
        history.epoch = list(self._epochs)
        history.history = {}
        for logs in self._logs:
            for name, value in logs.items():
                history.history.setdefault(name, []).append(value)

    def _exists(self) -> bool:
        """Whether a backup exists; raises if the file is of a different kind."""
        if self.path.is_file():
            return True
        for path in (self.path, self.path.with_name(_KERAS_FILE)):
            if path.exists():
                raise self._error("was not written by `BackupAndResume`", path)
        return False

    def _variables(self) -> list[tuple[str, Any]]:
        """Variables of the model and its optimizers, named, in a fixed order."""
        optimizers = {
            name: value
            for name, value in vars(self.model).items()
            if isinstance(value, keras.optimizers.Optimizer)
        }
        main = self.model.optimizer
        if main is not None and not main.built:
            main.build(self.model.trainable_variables)
        named = [(variable.path, variable) for variable in self.model.variables]
        for name, optimizer in sorted(optimizers.items()):
            named += [(f"{name}/{v.path}", v) for v in optimizer.variables]
        return named

    def _save(self):
        arrays = [(name, whole_array(variable)) for name, variable in self._variables()]
        if not is_writer():
            return
        states = []
        for index, callback in enumerate(self.callbacks):
            plain, lists = _changed_state(callback, self._initial_state[index])
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
            write_backup(file, header, [array for _, array in arrays])

    def _restore(self):
        with self.path.open("rb") as file, self._explain_errors():
            header = read_header(file)
            specs = [
                (name, np.dtype(dtype), tuple(shape))
                for name, dtype, shape in header["arrays"]
            ]
            classes = [state["class"] for state in header["callbacks"]]
            plain = [dict(state["state"]) for state in header["callbacks"]]
            counts = [dict(state["arrays"]) for state in header["callbacks"]]
            epochs = [int(epoch) for epoch in header["epochs"]]
            logs = [dict(logs) for logs in header["logs"]]
            next_epoch = self.params["epochs"] if header["stopped"] else epochs[-1] + 1
            self._check_matches(specs, classes, sum(sum(c.values()) for c in counts))
            arrays = read_arrays(file, specs)
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

    def _check_matches(self, specs, classes, num_callback_arrays):
        """Raises unless a backup is from the same model, optimizer and callbacks."""
        expected = [type(callback).__name__ for callback in self.callbacks]
        if classes != expected:
            raise self._error(
                f"is from a run with the callbacks {classes}, this one has {expected}"
            )
        variables = self._variables()
        num_saved = len(specs) - num_callback_arrays
        if num_saved != len(variables):
            raise self._error(
                f"is from a different model or optimizer: it has {num_saved} "
                f"variables, this one {len(variables)}"
            )
        for (name, variable), saved in zip(variables, specs, strict=False):
            dtype = np.dtype(keras.backend.standardize_dtype(variable.dtype))
            shape = tuple(variable.shape)
            if saved[1:] != (dtype, shape):
                raise self._error(
                    f"is from a different model or optimizer: {name} is {dtype} "
                    f"{shape}, in the backup {saved[0]} is {saved[1]} {saved[2]}"
                )

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Adds to a read error which file is damaged, and what to do."""
        try:
            yield
        except _BackupError:
            raise
        except _MALFORMED as error:
            raise self._error(
                f"is damaged ({type(error).__name__}: {error})"
            ) from error

    def _error(self, problem: str, path: Path | None = None) -> "_BackupError":
        return _BackupError(
            f"The backup {problem}. Delete it, and training starts from the first "
            f"epoch. Received: {str(path or self.path)!r}"
        )


class _BackupError(ValueError):
    """A backup cannot be restored; the message says why, and what to do."""


def _as_json(value) -> Any:
    """A log value as JSON can hold it."""
    if isinstance(value, str | int | float | bool | None):
        return value
    return np.asarray(value).tolist()


def _changed_state(callback, initial: dict) -> tuple[dict, dict]:
    """Attributes that a callback has changed: JSON values, and lists of arrays."""
    plain, lists = {}, {}
    # Constructor arguments come from the caller: Keras changes the sign of `min_delta`
    # in each process.
    arguments = inspect.signature(type(callback).__init__).parameters
    for name in vars(callback).keys() - arguments.keys() - {"_model", "params"}:
        value = vars(callback)[name]
        if isinstance(value, np.generic):
            value = value.item()
        is_list = isinstance(value, list) and len(value) > 0
        if is_list and _are_arrays(value):
            lists[name] = [np.asarray(part) for part in value]
        elif _is_plain(value) and (name not in initial or initial[name] != value):
            plain[name] = value
    return plain, lists


def _are_arrays(values) -> bool:
    """Whether these are arrays, such as weights, of which a scalar is a number."""
    return any(isinstance(part, np.ndarray) for part in values) and all(
        isinstance(part, np.ndarray | np.generic) for part in values
    )


def _is_plain(value) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)

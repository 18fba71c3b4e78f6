"""The functional model that every builder returns, and helpers to assemble one.

The model checks its inputs where their values are known: in `model(inputs)`, and in
arrays passed to `predict`, `fit`, `evaluate` and their batch variants. Data sets are
read inside compiled graphs, which only know shapes: there, an index outside its table
is clamped, wraps around, or raises a backend error. More than 400 lines, as each way to
call a model has its check.

Legend: B batch, T length.
"""

import functools
import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_attn.checks.arguments import check_fits, fits, get_empty_axes
from keras_attn.checks.indices import (
    IndexRange,
    check_indices,
    index_ranges,
    length_ranges,
)
from keras_attn.checks.inputs import (
    BOX_SHARES,
    MASKED_INPUTS,
    check_box_shares,
    check_bytes,
    check_finite,
    check_length,
    check_normalized,
    check_same_rows,
    smallest_rows,
)
from keras_attn.checks.inputs import (
    check_rows as check_masked_rows,
)
from keras_attn.distribution.device_batches import (
    check_rows,
    count_rows,
    explaining,
    first_rows,
    padded_rows,
)
from keras_attn.kernels.replicas import of_all_replicas, of_first_replica
from keras_attn.layers.adaptation.kernel_layer import (
    RestoresAdapters,
    copy_kernels,
    forget_functions,
    kernels_version,
    last_change,
)
from keras_attn.layers.adaptation.quantization import (
    Filters,
    QuantizationReport,
    quantize,
)
from keras_attn.models.parts.known_sizes import with_known_sizes
from keras_attn.models.parts.label_ranges import check_class_weight, check_labels
from keras_attn.models.parts.preprocessing_fields import read_steps
from keras_attn.models.parts.random_states import (
    load_random_states,
    save_random_states,
)
from keras_attn.models.parts.weighted_positions import weights_of_means

# Which text of a packed row a token is of, for models with `takes_documents`.
DOCUMENTS = "document_ids"


def sequence_inputs(*names: str) -> dict[str, Any]:
    """Inputs (B, T) by name: masks are bool, everything else is int32."""
    return {
        name: keras.Input(
            (None,), dtype="bool" if name.endswith("mask") else "int32", name=name
        )
        for name in names
    }


def by_name(layers: Iterable) -> dict[str, Any]:
    """Layers by their names."""
    return {layer.name: layer for layer in layers}


def numbered(layers: dict[str, Any], prefix: str) -> list:
    """The layers `<prefix>_0`, `<prefix>_1`, …, in order."""
    names = (f"{prefix}_{index}" for index in itertools.count())
    return [layers[name] for name in itertools.takewhile(layers.__contains__, names)]


def numbered_names(names: Collection[str], start: str, end: str = "") -> list[str]:
    """`start + "0"`, `start + "1"`, … as long as, followed by `end`, they are names."""
    found: list[str] = []
    while f"{start}{len(found)}{end}" in names:
        found.append(f"{start}{len(found)}")
    return found


def is_declared(model: keras.Model) -> bool:
    """Whether the model's inputs are symbolic tensors, as in the functional API."""
    inputs = getattr(model, "inputs", None)
    return bool(inputs) and all(isinstance(x, keras.KerasTensor) for x in inputs)


def input_structure(model: keras.Model) -> Any:
    """The symbolic inputs, in the structure that the model is called with."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def output_structure(model: keras.Model) -> Any:
    """The symbolic outputs, in the structure that the model returns."""
    return model.outputs[0] if isinstance(model, keras.Sequential) else model.output


def _make_names_unique(inputs, outputs) -> None:
    """Renames operations, such as `ops.reshape`, whose name another one has, too.

    Keras counts names from the start of the process, so that a new operation on a model
    from a file may get a name that is in the file. Layers keep theirs.
    """
    ends = {id(tensor) for tensor in keras.tree.flatten(inputs)}
    # Each operation after those whose results it needs: first those that may belong to
    # another model, too.
    operations, nodes, stack = {}, set(), []
    stack += ((tensor, False) for tensor in keras.tree.flatten(outputs))
    while stack:
        tensor, is_ready = stack.pop()
        operation, number, _ = tensor._keras_history
        if is_ready:
            operations[operation] = None
        elif id(tensor) not in ends and (operation, number) not in nodes:
            nodes.add((operation, number))
            stack.append((tensor, True))
            needed = operation._inbound_nodes[number].input_tensors
            stack += ((each, False) for each in needed)
    taken: set[str] = set()
    for operation in operations:
        if isinstance(operation, keras.Layer):
            continue
        name, number = operation.name, 1
        while operation.name in taken:
            operation.name, number = f"{name}_again_{number}", number + 1
        taken.add(operation.name)


# The name of the class matters: Keras' TensorBoard callback draws the graph only of a
# `Functional`.
@keras.saving.register_keras_serializable("keras_attn")
class Functional(keras.Model):
    """A functional model that checks its inputs, and its labels if they are classes.

    Attributes:
        training_outputs: The keys of the outputs that only training needs, such as the
            output of an auxiliary head; `export` leaves them out. They are saved with
            the model.
        class_names: The name of each class, in the order of the logits; None if they
            are unknown. They are saved with the model.
        preprocessing: How images become inputs, with the fields of transformers'
            `preprocessor_config.json`; None if nothing is known. It is saved with the
            model, which does not apply it.
        source: The folder on the hub that the weights were read from, with its commit,
            `hf://owner/name@commit`; None for others. It is saved with the model.
        takes_documents: Whether the model takes `document_ids` besides its inputs,
            which tell apart the texts of a packed row.

    Raises:
        ValueError: If an input has the wrong shape or is empty, too long or too short,
            an index (token id, position, class) is outside its table, a number is NaN
            or infinite, a pixel of a uint8 input is not a whole number from 0 to 255,
            images are not normalized, boxes are not shares of their image or turned
            round, a row is all padding, or arrays to predict or learn from have
            different numbers of rows; in `fit` and `evaluate` also if a label is not
            one of the classes of a sparse cross-entropy.
    """

    training_outputs: tuple[str, ...] = ()
    source: str | None = None
    takes_documents: bool = False

    def __init__(self, *args, **kwargs):
        graph = (*args, *(kwargs[x] for x in ("inputs", "outputs") if x in kwargs))
        if len(graph) >= 2:
            _make_names_unique(*graph[:2])
        super().__init__(*args, **kwargs)
        # Keras' wrapper of the method drops what it returns.
        self.__dict__.pop("quantize", None)

    # In `__dict__`, since Keras would track lists and dictionaries that are assigned.
    @property
    def class_names(self) -> tuple[str, ...] | None:  # noqa: D102
        return self.__dict__.get("_class_names")

    @class_names.setter
    def class_names(self, names: Sequence[str] | None) -> None:
        is_list = isinstance(names, Sequence) and not isinstance(names, str)
        if names is not None and not (
            is_list and all(isinstance(name, str) for name in names)
        ):
            raise ValueError(
                "`class_names` must be None or a list of strings, one for each class. "
                f"Received: class_names={names!r}"
            )
        self.__dict__["_class_names"] = None if names is None else tuple(names)

    @property
    def preprocessing(self) -> dict[str, Any] | None:  # noqa: D102
        return self.__dict__.get("_preprocessing")

    @preprocessing.setter
    def preprocessing(self, fields: Mapping[str, Any] | None) -> None:
        if fields is not None and not isinstance(fields, Mapping):
            raise ValueError(
                "`preprocessing` must be None or a dictionary of the fields of a "
                f"preprocessor_config.json. Received: preprocessing={fields!r}"
            )
        # Without Keras' wrappers around dictionaries and lists.
        plain = None if fields is None else json.loads(json.dumps(fields))
        self.__dict__["_preprocessing"] = plain

    def get_config(self) -> dict[str, Any]:
        """The graph, and the attributes of the model that are set."""
        config = super().get_config()
        if self.class_names is not None:
            config["class_names"] = list(self.class_names)
        if self.preprocessing is not None:
            config["preprocessing"] = self.preprocessing
        if self.source is not None:
            config["source"] = self.source
        if self.training_outputs:
            config["training_outputs"] = list(self.training_outputs)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None):
        """The model of a configuration."""
        graph = dict(config)
        names, fields = (graph.pop(x, None) for x in ("class_names", "preprocessing"))
        source = graph.pop("source", None)
        training_outputs = tuple(graph.pop("training_outputs", ()))
        model = super().from_config(graph, custom_objects)
        model.class_names, model.preprocessing = names, fields
        model.source = source
        if training_outputs:
            model.training_outputs = training_outputs
        return model

    def save_own_variables(self, store):
        """Saves what belongs to no layer, and the random states of the layers."""
        super().save_own_variables(store)
        save_random_states(self, store)

    def load_own_variables(self, store):
        """Loads what `save_own_variables` saves; files of Keras have no such states."""
        super().load_own_variables(load_random_states(self, store))

    def _run_through_graph(self, inputs, **functions):
        """As in Keras; `keras.models.clone_model` makes new layers by it."""
        made = {}
        operation_fn = functions.get("operation_fn")
        if operation_fn is not None:

            def remember(operation):
                result = operation_fn(operation)
                if isinstance(result, RestoresAdapters) and result is not operation:
                    made[operation] = result
                return result

            functions["operation_fn"] = remember
        outputs = super()._run_through_graph(inputs, **functions)
        for layer, copied in made.items():
            copy_kernels(layer, copied)
        return outputs

    @property
    def kernels_version(self) -> int:
        """Grows whenever kernels of the model consist of something else than before.

        Such as after `training.enable_lora` of this model, or of one that shares its
        layers. What was traced before is forgotten.
        """
        now, (before, version) = last_change(), self.__dict__.get("_kernels", (None, 0))
        if now != before:
            latest = kernels_version(self)
            if latest != version and before is not None:
                forget_functions(self)
            self.__dict__["_kernels"], version = (now, latest), latest
        return version

    def __call__(self, *args, **kwargs):
        """Checks the inputs, then calls the model as `keras.Model` does."""
        if args:
            args = (with_known_sizes(args[0], self.inputs), *args[1:])
        self._check_inputs(args[0] if args else kwargs.get("inputs"))
        return super().__call__(*args, **kwargs)

    def quantize(
        self,
        mode: str | None = None,
        config: keras.quantizers.QuantizationConfig | None = None,
        filters: Filters = None,
        *,
        block_size: int | None = None,
    ) -> QuantizationReport:
        """Replaces kernels by integers of 8 or 4 bits; see `training.quantize`."""
        return quantize(self, mode, config, filters, block_size=block_size)

    def predict(self, x, batch_size=None, *args, **kwargs):
        """Checks arrays, then predicts as `keras.Model.predict` does.

        Arrays may have any number of rows, also where the devices of a distribution
        share them.
        """
        self._check_arrays(x)
        x, rows = padded_rows(x, batch_size)
        with explaining():
            outputs = super().predict(x, batch_size, *args, **kwargs)
        return first_rows(outputs, rows)

    def predict_on_batch(self, x):
        """Checks arrays, then predicts as `keras.Model.predict_on_batch` does."""
        self._check_arrays(x)
        x, rows = padded_rows(x, in_one_batch=True)
        with explaining():
            outputs = of_first_replica(self, super().predict_on_batch(x))
        return first_rows(outputs, rows)

    def fit(self, x=None, y=None, *args, **kwargs):
        """Checks arrays, then trains as `keras.Model.fit` does."""
        self._check_examples(x, y)
        check_class_weight(self, kwargs.get("class_weight"))
        batch_size = args[0] if args else kwargs.get("batch_size")
        check_rows(x, batch_size, kwargs.get("validation_split") or 0.0)
        validation = kwargs.get("validation_data")
        if isinstance(validation, list | tuple):
            self._check_examples(*validation[:2])
            check_rows(validation[0], kwargs.get("validation_batch_size") or batch_size)
        with explaining():
            return super().fit(x, y, *args, **kwargs)

    def evaluate(self, x=None, y=None, *args, **kwargs):
        """Checks arrays, then evaluates as `keras.Model.evaluate` does."""
        self._check_examples(x, y)
        check_rows(x, args[0] if args else kwargs.get("batch_size"))
        with explaining():
            return super().evaluate(x, y, *args, **kwargs)

    def train_on_batch(self, x, y=None, *args, **kwargs):
        """Checks arrays, then trains as `keras.Model.train_on_batch` does."""
        self._check_examples(x, y)
        check_rows(x, count_rows(x))
        return super().train_on_batch(x, y, *args, **kwargs)

    def test_on_batch(self, x, y=None, *args, **kwargs):
        """Checks arrays, then evaluates as `keras.Model.test_on_batch` does."""
        self._check_examples(x, y)
        check_rows(x, count_rows(x))
        return super().test_on_batch(x, y, *args, **kwargs)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The loss of `compile`, of Keras' own a mean over the positions that count.

        Under `tf.distribute` it is the loss of the rows of all replicas.

        Args:
            x: As in Keras.
            y: As in Keras.
            y_pred: As in Keras.
            sample_weight: As in Keras; see `weights_of_means`.
            training: As in Keras.
        """
        sample_weight = weights_of_means(
            self.loss, sample_weight, y_pred, self.output_names
        )
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return of_all_replicas(loss)

    @functools.cached_property
    def _ranges(self) -> dict[str, IndexRange]:
        return index_ranges(self)

    @functools.cached_property
    def _lengths(self) -> dict[str, IndexRange]:
        return length_ranges(self)

    @property
    def _takes_bytes(self) -> bool:
        """Whether the model's preprocessing leaves pixels as large as in files."""
        try:
            steps = read_steps(self.preprocessing or {"do_resize": False})
        except ValueError:  # Nothing is known.
            return False
        return 255 * steps.scale / max(keras.tree.flatten(steps.std)) > 16

    def _check_examples(self, inputs, labels=None) -> None:
        """Checks what is learned or evaluated.

        A row that is all padding may fill up a batch there, with a sample weight of 0.
        """
        self._check_arrays(inputs, rows=False)
        check_labels(self, labels)

    def _check_arrays(self, inputs, rows=True) -> None:
        """Checks arrays that Keras divides into batches, and its own functions."""
        self.kernels_version  # noqa: B018  Forgets functions that are out of date.
        self._check_inputs(inputs, rows)
        if isinstance(inputs, dict):
            arrays = {k: v for k, v in inputs.items() if hasattr(v, "shape")}
            check_same_rows({name: _shape(array) for name, array in arrays.items()})

    def _check_inputs(self, inputs, rows=True) -> None:
        """Checks one array or a dictionary of arrays; Keras checks anything else."""
        expected = {tensor.name: tensor for tensor in self.inputs}
        if not isinstance(inputs, dict):
            inputs = dict.fromkeys(expected, inputs) if len(expected) == 1 else {}
        if DOCUMENTS in inputs and DOCUMENTS not in expected:
            self._check_documents(inputs)
        given = {
            name: inputs[name]
            for name in expected
            if hasattr(inputs.get(name), "shape")
        }
        for name, value in given.items():
            shape, declared = _shape(value), tuple(expected[name].shape)
            empty_axes = get_empty_axes(name)
            if not fits(_squeezed(shape, declared), declared, empty_axes):
                check_fits(name, shape, declared, empty_axes)
        for name in sorted(given, key=_by_importance):
            if name in self._lengths:
                check_length(name, _shape(given[name]), self._lengths[name])
            if name in self._ranges:
                check_indices(name, given[name], self._ranges[name])
            if rows and name in MASKED_INPUTS:
                least = smallest_rows(self._lengths, name)
                check_masked_rows(name, given[name], least)
            check_finite(name, given[name])
            if expected[name].dtype == "uint8":
                check_bytes(name, given[name])
            elif name == "images" and not self._takes_bytes:
                check_normalized(name, given[name])
            elif name in BOX_SHARES:
                check_box_shares(name, given[name], given.get(BOX_SHARES[name]))

    def _check_documents(self, inputs) -> None:
        """Keras would ignore an input that the graph does not have."""
        if not self.takes_documents:
            raise ValueError(
                f"`{DOCUMENTS}` tells apart texts that share a row, which this model "
                "cannot; give each text its own row (`packed=False`), or use a model "
                f"from `build_gpt`. Received: model={self.name!r}, with the inputs "
                f"{[tensor.name for tensor in self.inputs]}"
            )
        documents, tokens = (inputs.get(name) for name in (DOCUMENTS, "token_ids"))
        if hasattr(documents, "shape") and hasattr(tokens, "shape"):
            check_fits(DOCUMENTS, _shape(documents), _shape(tokens), (0, 1))


def _by_importance(name: str) -> int:
    """Tokens first, masks last: a caller knows which text is too long."""
    return 0 if name.endswith("token_ids") else 2 if name in MASKED_INPUTS else 1


def without_training_outputs(model: keras.Model) -> keras.Model:
    """The model without its `training_outputs` and the layers that only they need."""
    names = getattr(model, "training_outputs", ())
    if not names:
        return model
    outputs = {
        key: tensor
        for key, tensor in output_structure(model).items()
        if key not in names
    }
    return Functional(input_structure(model), outputs, name=model.name)


def _shape(tensor) -> Any:
    """The shape; None if TensorFlow does not know the number of axes."""
    return None if getattr(tensor.shape, "rank", 0) is None else tuple(tensor.shape)


def _squeezed(shape, expected):
    """The shape after Keras has removed or added a last axis of size 1."""
    if shape and len(shape) == len(expected) + 1 and shape[-1] == 1:
        return shape[:-1]
    if shape and len(shape) == len(expected) - 1 and expected[-1] == 1:
        return (*shape, 1)
    return shape

"""Low-rank updates in PEFT's folders: `adapter_config.json` and its tensors.

PEFT names the tensors after the modules of transformers' model:
`base_model.model.<module>.lora_A.weight` (r, D) and `lora_B.weight` (E, r), or
`lora_embedding_A` (r, V) and `lora_embedding_B` (D, r) of an embedding, with
ΔW = s B A. Ours are Aᵀ and Bᵀ, one pair for each part of a fused kernel. Modules have
the names of transformers 5 in what is written; those of transformers 4 are read, too.
"""

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_attn.file_reading import read_json, shown
from keras_attn.layers.adaptation.adaptable import (
    adaptable_layers,
    add_update,
    check_update,
)
from keras_attn.layers.adaptation.low_rank import LowRankUpdate
from keras_attn.models.checkpoints.folder import Files, preview, write_folder
from keras_attn.models.checkpoints.mapping import Family, variables_of
from keras_attn.models.checkpoints.modules import (
    SUFFIXES,
    Module,
    Modules,
    update_of,
)
from keras_attn.models.checkpoints.saving import array_of
from keras_attn.models.checkpoints.tensors import Tensor, TensorFile

if TYPE_CHECKING:
    from keras_attn.training.lora import LoRAReport

FILES = Files("adapter_config.json", "adapter_model.safetensors", can_be_split=False)
_PREFIX = "base_model.model."
# What a folder may ask for and we lack, and the values that ask for nothing.
_UNSUPPORTED: dict[str, Any] = {
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "bias": "none",
    "kasa_config": None,
    "layer_replication": None,
    "lora_bias": False,
    "monteclora_config": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "use_bdlora": False,
    "use_dora": False,
    "use_qalora": False,
    "velora_config": None,
}
# Initial values of A and B for which PEFT also changes the base.
_CHANGING_BASE = ("corda", "loftq", "lora_ga", "olora", "pissa")
_TASK_TYPES = {
    "classifier": "SEQ_CLS",
    "token_classifier": "TOKEN_CLS",
    "span_qa": "QUESTION_ANS",
    "causal_lm": "CAUSAL_LM",
}


class _Tensors:
    """The tensors of a file, by their keys of today without the prefix.

    Args:
        file: The file.
        family: The family of the model, which knows the names of modules.
    """

    def __init__(self, file: TensorFile, family: Family):
        self.path = str(file.path)
        self._file = file
        self._keys = {
            family.module_key(key.removeprefix(_PREFIX)): key
            for key in file.shapes
            if key.startswith(_PREFIX)
        }
        self.others = sorted(set(file.shapes) - set(self._keys.values()))

    def __iter__(self):
        return iter(self._keys)

    def __contains__(self, key):
        return key in self._keys

    def name(self, key: str) -> str:
        """The key in the file, without the prefix."""
        return self._keys[key].removeprefix(_PREFIX)

    def read(self, key: str) -> np.ndarray:
        """The tensor, as float32."""
        return self._file.read(self._keys[key]).astype("float32")


def load_lora(
    model: keras.Model, folder: str | os.PathLike, *, name: str = "default"
) -> "LoRAReport":
    """Reads low-rank updates from a folder of PEFT's, and switches them on.

    Layers that the folder has as a whole (`modules_to_save`), such as the classifier,
    replace the model's. Everything else is fixed, as after `training.enable_lora`:
    compile the model before `fit`.

    Args:
        model: A model with a counterpart in transformers, such as from
            `load_checkpoint`, with the weights that the updates were learned on.
        folder: With `adapter_config.json` and `adapter_model.safetensors`.
        name: Name of the updates.

    Returns:
        As from `training.enable_lora`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If the folder has no LoRA, a field without a counterpart here, or
            tensors of another base model; the model has updates of this name; or its
            output layer is a table that is updated, which PEFT uses as it was.

    Example:
        ```python
        model = models.load_checkpoint("bert-base-uncased", "classifier", num_classes=2)
        print(models.load_lora(model, "bert-lora-sst2"))
        ```
    """
    # It imports the data sets, and they TensorFlow, which models do without on JAX.
    from keras_attn.training.lora import train_only_updates

    path = Path(folder)
    config = read_json(path / FILES.config)
    _check_config(config, path / FILES.config)
    modules = Modules(model)
    file = _Tensors(TensorFile(path / FILES.weights), modules.family)
    kernels, whole = _assigned(file, modules)
    found = [part for parts in kernels for part in parts]
    _check_targets(config, modules, found, file.path)
    changed = [part.kernel for part in found] + [x.variable for x, _ in whole]
    modules.check_ties({id(variable) for variable in changed})
    updates = [_update(file, config, parts, name) for parts in kernels]
    for parts, update, _ in updates:
        check_update(parts[0].layer, parts[0].attribute, update.rank, name)
    values = [(weight, _whole(file, weight, keys)) for weight, keys in whole]
    trained = set()
    for weight, value in values:
        weight.variable.assign(value)
        trained.update(id(variable) for variable in variables_of(weight))
    for parts, update, pairs in updates:
        add_update(parts[0].layer, parts[0].attribute, update)
        for own, pair in zip(update.pairs, pairs, strict=True):
            for variable, value in zip(own, pair, strict=True):
                variable.assign(value)
    owners = [
        layer
        for layer in model.layers
        if any(id(variable) in trained for variable in layer.weights)
    ]
    return train_only_updates(model, name, owners)


def save_lora(
    model: keras.Model,
    folder: str | os.PathLike,
    *,
    name: str = "default",
    base_model: str | None = None,
) -> None:
    """Writes low-rank updates as a folder that PEFT reads.

    Layers that train as a whole are written too (`modules_to_save`). Files are written
    to a temporary folder and renamed once they are complete.

    Args:
        model: A model after `training.enable_lora` or `load_lora`, with a counterpart
            in transformers.
        folder: Where to write; created if it is missing. Other files in it are kept.
        name: Name of the updates.
        base_model: What PEFT loads as the base, a name or a folder, for the
            configuration.

    Raises:
        ValueError: If the model has no updates of this name, or one of a kernel without
            a module in transformers or of a table that is the output layer, too.
        NotADirectoryError: If `folder` is a file.

    Example:
        ```python
        models.save_lora(model, "bert-lora-sst2", base_model="bert-base-uncased")
        ```
    """
    modules = Modules(model)
    whole = modules.trained_as_a_whole()
    # A head is written as a whole, with the sums of what it has learned.
    others = [x for x in modules.by_name.values() if not _is_inside(x.name, whole)]
    adapted = [x for x in others if x.update(name) and _pair(x, name)]
    _check_all_written(model, name, adapted, modules, whole)
    changed = {id(module.kernel) for module in adapted}
    tensors = {}
    for module in adapted:
        for suffix, array in zip(module.suffixes, _pair(module, name), strict=True):
            tensors[f"{_PREFIX}{module.name}{suffix}"] = _tensor(array)
    for keys, weight in modules.weights:
        if _is_inside(keys[0], whole):
            changed.add(id(weight.variable))
            for index, key in enumerate(keys):
                tensors[_PREFIX + key] = _tensor(array_of(weight, index))
    modules.check_ties(changed)
    config = _config(adapted, others, name)
    if "token_ids" in [tensor.name for tensor in model.inputs] and (
        whole or modules.task == "causal_lm"
    ):
        # PEFT gives texts to a model with a type, and expects a head that it trained.
        config |= {"task_type": _TASK_TYPES.get(modules.task)}
    config |= {"base_model_name_or_path": base_model}
    config |= {"modules_to_save": whole or None}
    write_folder(folder, config, tensors, 0, None, FILES)


def _assigned(file, modules):
    """Modules with updates, by kernel, and the weights that are given as a whole."""
    by_key = {key: (weight, keys) for keys, weight in modules.weights for key in keys}
    kernels, whole, unknown = {}, {}, list(file.others)
    for key in file:
        module = None
        for suffix in SUFFIXES:
            if key.endswith(suffix):
                module = modules.by_name.get(key.removesuffix(suffix))
        if module is not None and key.removeprefix(module.name) in module.suffixes:
            group = kernels.setdefault((id(module.layer), module.attribute), {})
            group[module.name] = module
        elif key in by_key:
            weight, keys = by_key[key]
            whole[id(weight)] = (weight, keys)
            name = key.rpartition(".")[0]
            others = [x for x in by_key if x.rpartition(".")[0] == name]
            unknown += [x for x in {*keys, *others} if x not in file]
        else:
            unknown.append(file.name(key))
    if unknown:
        raise ValueError(
            "The tensors must be updates of kernels of this model, or whole layers of "
            f"it. Received: {preview(set(unknown))} in {file.path!r}, and a model with "
            f"the kernels {preview(list(modules.by_name))}"
        )
    groups = [
        sorted(group.values(), key=lambda module: module.columns)
        for group in kernels.values()
    ]
    return groups, list(whole.values())


def _update(file, config, parts, name):
    """The parts, their update, and A and B of each part."""
    pairs = [_pair_of(file, module) for module in parts]
    scales = set()
    for module, (a, _) in zip(parts, pairs, strict=True):
        rank = a.shape[-1]
        alpha = _alpha(config, file.name(module.name + module.suffixes[0]))
        scales.add((rank, alpha / (rank**0.5 if config.get("use_rslora") else rank)))
    if len(scales) > 1:
        raise ValueError(
            f"{', '.join(module.name for module in parts)} are one kernel here, so "
            "their updates must have one rank and one scale. Received: "
            f"(rank, scale) of {', '.join(map(str, sorted(scales)))}"
        )
    ((rank, scale),) = scales
    layer = parts[0].layer
    update = LowRankUpdate(
        rank,
        float(scale),
        columns=tuple(module.columns for module in parts),
        dropout=float(config.get("lora_dropout") or 0.0),
        dtype=layer.dtype_policy,
        name=name,
    )
    return parts, update, pairs


def _alpha(config, key):
    """α of the update whose A has this key in the file."""
    for pattern, alpha in (config.get("alpha_pattern") or {}).items():
        # As in PEFT, the first that matches counts.
        if re.match(rf"(.*\.)?({pattern})\.lora_(embedding_)?A", key):
            return alpha
    return config["lora_alpha"]


def _whole(file, weight, keys):
    """The value of a weight that the folder has as a whole."""
    arrays = {key: file.read(key) for key in keys}
    for key, shape in zip(keys, weight.shapes().values(), strict=True):
        if arrays[key].shape != shape:
            raise ValueError(
                "Layers in the folder must have the sizes of the model's. Received: "
                f"{key!r} with shape {arrays[key].shape} in {file.path!r}, for a "
                f"weight of shape {shape}"
            )
    return weight.read(*arrays.values())


def _pair_of(file, module):
    """A and B of a module in our layout: (…, D, r) and (r, E)."""
    arrays = []
    for suffix in module.suffixes:
        key = module.name + suffix
        if key not in file:
            raise ValueError(
                f"An update needs two tensors. Received: no {key!r} in {file.path!r}"
            )
        arrays.append(file.read(key))
    a, b = arrays
    *inner, _ = module.kernel.shape
    start, stop = module.columns
    # PyTorch's convolutions: (r, D, rows, columns) and (E, r, 1, 1).
    if a.ndim == b.ndim == len(inner) + 1:
        ours = a.transpose(2, 3, 1, 0) if a.ndim == 4 else a.T
        up = b.reshape(len(b), -1).T
        if list(ours.shape) == [*inner, len(up)] and up.shape[1] == stop - start:
            return ours, up
    raise ValueError(
        "The updates must be of a base model of these sizes. Received: A and B of "
        f"{module.name!r} with shapes {a.shape} and {b.shape}, for a kernel of shape "
        f"{(*inner, stop - start)}"
    )


def _pair(module: Module, name) -> Any:
    """A and B of a module in PEFT's layout; None if the update leaves it out."""
    update: Any = module.update(name)
    start, stop = module.columns
    downs, ups = [], []
    for (first, last), (a, b) in zip(update.columns, update.pairs, strict=True):
        if first < stop and start < last:
            up = np.zeros((update.rank, stop - start), "float32")
            begin, end = max(first, start), min(last, stop)
            part = keras.ops.convert_to_numpy(b)[:, begin - first : end - first]
            up[:, begin - start : end - start] = part
            downs.append(keras.ops.convert_to_numpy(a))
            ups.append(up)
    if not downs:
        return None
    a, b = np.concatenate(downs, -1), np.concatenate(ups, 0)
    if a.ndim == 4:
        return a.transpose(3, 2, 0, 1), b.T[:, :, None, None]
    return a.T, b.T


def _is_inside(name, whole):
    """Whether a module, or a key, is in one of the modules."""
    return any(f"{name}.".startswith(f"{module}.") for module in whole)


def _check_all_written(model, name, adapted, modules, whole):
    """Raises unless the modules cover every update of this name."""
    covered = {}
    merged = [x for x in modules.by_name.values() if _is_inside(x.name, whole)]
    for module in (*adapted, *merged):
        key = (id(module.layer), module.attribute)
        start, stop = module.columns
        covered.setdefault(key, set()).update(range(start, stop))
    found, lost = False, []
    for layer in adaptable_layers(model):
        for attribute in layer.kernel_parts():
            update = update_of(getattr(layer, attribute), name)
            if update is None:
                continue
            found = True
            columns = covered.get((id(layer), attribute), set())
            if any(not columns.issuperset(range(*x)) for x in update.columns):
                lost.append(layer.path or layer.name)
    if not found or not adapted:
        raise ValueError(
            "`name` must be the name of low-rank updates of the model; add them by "
            f"`training.enable_lora`. Received: name={name!r}"
        )
    if lost:
        raise ValueError(
            "Each update must be of a kernel that is a module in transformers. "
            f"Received: updates of {preview(lost)}"
        )


def _check_targets(config, modules, found, path):
    """Raises if a module with the same name as one with an update has none."""
    targets = config.get("target_modules")
    is_narrow = config.get("exclude_modules") or config.get("layers_to_transform")
    if not isinstance(targets, list) or "." in "".join(targets) or is_narrow:
        return
    names = {module.name for module in found}
    ends = {name.rpartition(".")[2] for name in names}
    whole = set(config.get("modules_to_save") or ())
    missing = [
        name
        for name in sorted(set(modules.by_name) - names)
        if name.rpartition(".")[2] in ends and not whole & set(name.split("."))
    ]
    if missing:
        raise ValueError(
            "The base of the updates must have the size of this model: all modules "
            f"with the names in `target_modules` need one. Received: none of "
            f"{preview(missing)} in {path!r}"
        )


def _config(adapted, others, name):
    """The fields of `adapter_config.json`."""
    updates: Any = {x.name: x.update(name) for x in adapted}
    # Parts with an A of their own may be one module.
    ranks: Any = {x.name: len(_pair(x, name)[0]) for x in adapted}
    alphas = {x: update.initial_scale * ranks[x] for x, update in updates.items()}
    rank, alpha = next(iter(ranks.values())), next(iter(alphas.values()))
    ends = {x.name.rpartition(".")[2] for x in adapted}
    # A name alone means every module with this name.
    alike = {x.name for x in others if x.name.rpartition(".")[2] in ends}
    return {
        "peft_type": "LORA",
        "task_type": None,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {re.escape(k): v for k, v in ranks.items() if v != rank},
        "alpha_pattern": {re.escape(k): v for k, v in alphas.items() if v != alpha},
        "lora_dropout": next(iter(updates.values())).dropout,
        "target_modules": sorted(ends if alike == set(updates) else updates),
        "fan_in_fan_out": all(x.keeps_axes for x in adapted),
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }


def _check_config(config, path):
    """Raises unless the configuration is of LoRA, with nothing that we lack."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ValueError(
            f"`peft_type` in {path.name} must be LORA. Received: "
            f"peft_type={shown(kind)} in {str(path)!r}"
        )
    for field, nothing in _UNSUPPORTED.items():
        value = config.get(field)
        if value and value != nothing:
            raise ValueError(
                f"`{field}` in {path.name} has no counterpart here: merge the updates "
                "with PEFT (`merge_and_unload`), and load the whole model. Received: "
                f"{field}={shown(value)} in {str(path)!r}"
            )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGING_BASE):
        raise ValueError(
            f"`init_lora_weights` in {path.name} must be one that keeps the base: save "
            "with PEFT's `path_initial_model_for_weight_conversion`. Received: "
            f"init_lora_weights={shown(start)} in {str(path)!r}"
        )
    alphas = config.get("alpha_pattern") or {}
    dropout = config.get("lora_dropout") or 0.0
    for field, is_right, expected in (
        ("lora_alpha", _is_number(config.get("lora_alpha")), "a number"),
        ("lora_dropout", _is_number(dropout) and 0 <= dropout < 1, "in [0, 1)"),
        ("alpha_pattern", _are_patterns(alphas), "regular expressions with numbers"),
    ):
        if not is_right:
            raise ValueError(
                f"`{field}` in {path.name} must be {expected}. Received: "
                f"{field}={shown(config.get(field))} in {str(path)!r}"
            )


def _is_number(value):
    return isinstance(value, int | float) and math.isfinite(value)


def _are_patterns(alphas):
    if not isinstance(alphas, dict) or not all(map(_is_number, alphas.values())):
        return False
    try:
        return all(re.compile(pattern) for pattern in alphas)
    except re.error:
        return False


def _tensor(array):
    return Tensor(array.shape, "F32", lambda: array)

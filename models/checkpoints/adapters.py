"""Low-rank updates in PEFT's folders: `adapter_config.json` and its tensors.

PEFT names the tensors after the modules of transformers' model:
`base_model.model.<module>.lora_A.weight` (r, D) and `lora_B.weight` (E, r), or
`lora_embedding_A` (r, V) and `lora_embedding_B` (D, r) of an embedding, with
ΔW = s B A. Ours are Aᵀ and Bᵀ, one pair for each part of a fused kernel.
"""

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_attn.file_reading import read_json, shown
from keras_attn.layers.adaptation.adaptable import (
    Adaptable,
    adaptable_layers,
    add_update,
    check_update,
)
from keras_attn.layers.adaptation.low_rank import Columns, LowRankKernel, LowRankUpdate
from keras_attn.models.checkpoints.folder import Files, preview, write_folder
from keras_attn.models.checkpoints.mapping import variables_of
from keras_attn.models.checkpoints.saving import family_of
from keras_attn.models.checkpoints.tensors import Tensor, TensorFile
from keras_attn.training.lora import LoRAReport, train_only_updates

FILES = Files("adapter_config.json", "adapter_model.safetensors", can_be_split=False)
_PREFIX = "base_model.model."
_DENSE = (".lora_A.weight", ".lora_B.weight")
_EMBEDDING = (".lora_embedding_A", ".lora_embedding_B")
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
_TASK_TYPES = {
    "classifier": "SEQ_CLS",
    "token_classifier": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
    "lm": "CAUSAL_LM",
}


class _Module(NamedTuple):
    """A module of transformers' model, and the part of a kernel of ours that it is.

    Attributes:
        name: Its path in the model of the folder.
        layer: The layer with the kernel.
        attribute: The kernel's attribute of the layer.
        columns: The columns of the kernel.
        keeps_axes: Whether its weight has our axes, as in GPT-2's `Conv1D`.
    """

    name: str
    layer: Adaptable
    attribute: str
    columns: Columns
    keeps_axes: bool

    @property
    def kernel(self) -> Any:
        """The kernel of ours."""
        return getattr(self.layer, self.attribute)

    @property
    def suffixes(self) -> tuple[str, str]:
        """What follows the name in the keys of A and B."""
        is_table = isinstance(self.layer, keras.layers.Embedding)
        return _EMBEDDING if is_table else _DENSE


def load_lora(
    model: keras.Model, folder: str | os.PathLike, *, name: str = "default"
) -> LoRAReport:
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
            tensors of another base model; or the model has updates of this name.

    Example:
        ```python
        model = models.load_checkpoint("bert-base-uncased", "classifier", num_classes=2)
        print(models.load_lora(model, "bert-lora-sst2"))
        ```
    """
    path = Path(folder)
    config = read_json(path / FILES.config)
    _check_config(config, path / FILES.config)
    file = TensorFile(path / FILES.weights)
    weights, modules = _modules(model)
    kernels, whole = _assigned(file, weights, modules)
    updates = [_update(file, config, parts, name) for parts in kernels]
    for parts, update, _ in updates:
        check_update(parts[0].layer, parts[0].attribute, update.rank, name)
    values = [
        (weight, weight.read(*[_float(file, _PREFIX + key) for key in keys]))
        for weight, keys in whole
    ]
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
            a module in transformers.
        NotADirectoryError: If `folder` is a file.

    Example:
        ```python
        models.save_lora(model, "bert-lora-sst2", base_model="bert-base-uncased")
        ```
    """
    weights, modules = _modules(model)
    adapted = [
        module
        for module in modules.values()
        if _update_of(module.kernel, name) and _pair(module, name)
    ]
    _check_all_written(model, name, adapted)
    tensors = {}
    for module in adapted:
        for suffix, array in zip(module.suffixes, _pair(module, name), strict=True):
            tensors[f"{_PREFIX}{module.name}{suffix}"] = _tensor(array)
    saved = {}
    for keys, weight in weights:
        variables = variables_of(weight)
        if all(isinstance(x, keras.Variable) and x.trainable for x in variables):
            value = keras.ops.convert_to_numpy(variables[0])
            for key, part in zip(keys, weight.write(value), strict=True):
                tensors[_PREFIX + key] = _tensor(part)
                saved[_saved_module(key, family_of(model, None)[0].prefix)] = None
    config = _config(model, adapted, modules, name)
    config |= {"base_model_name_or_path": base_model}
    config |= {"modules_to_save": list(saved) or None}
    write_folder(folder, config, tensors, 0, None, FILES)


def _modules(model):
    """The weights with their keys in a folder, and the modules among them by name."""
    family, task = family_of(model, None)
    is_bare = family.saved_as.get(task) == family.bare
    prefix = family.prefix if is_bare else ""
    kernels = {
        id(getattr(layer, attribute)): (layer, attribute)
        for layer in adaptable_layers(model)
        for attribute in layer.kernel_parts()
    }
    weights, modules = [], {}
    for weight in family.weights(model):
        keys = [key.removeprefix(prefix) for key in weight.keys]
        weights.append((keys, weight))
        if id(weight.variable) not in kernels:
            continue
        layer, attribute = kernels[id(weight.variable)]
        # Which columns of the kernel each tensor has, and along which axis.
        shape = weight.variable.shape
        numbers = np.broadcast_to(np.arange(shape[-1]), shape)
        for key, part in zip(keys, weight.write(numbers), strict=True):
            axis = int(np.argmax(part.strides))
            numbers_of_part = np.moveaxis(part, axis, 0).reshape(part.shape[axis], -1)
            name, end = key.rpartition(".")[::2]
            if end == "weight":
                first, last = numbers_of_part[[0, -1], 0]
                columns = (int(first), int(last) + 1)
                keeps_axes = axis == part.ndim - 1
                modules[name] = _Module(name, layer, attribute, columns, keeps_axes)
    return weights, modules


def _assigned(file, weights, modules):
    """Modules with updates, by kernel, and the weights that are given as a whole."""
    by_key = {key: (weight, keys) for keys, weight in weights for key in keys}
    kernels, whole, unknown = {}, {}, []
    for full in file.shapes:
        key = full.removeprefix(_PREFIX)
        module = None
        for suffix in (*_DENSE, *_EMBEDDING):
            if key.endswith(suffix):
                module = modules.get(key.removesuffix(suffix))
        if not full.startswith(_PREFIX):
            unknown.append(full)
        elif module is not None and key.removeprefix(module.name) in module.suffixes:
            group = kernels.setdefault((id(module.layer), module.attribute), {})
            group[module.name] = module
        elif key in by_key:
            weight, keys = by_key[key]
            whole[id(weight)] = (weight, keys)
            unknown += [x for x in keys if _PREFIX + x not in file.shapes]
        else:
            unknown.append(full)
    if unknown:
        raise ValueError(
            "The tensors must be updates of kernels of this model, or whole layers of "
            f"it. Received: {preview(unknown)} in {str(file.path)!r}"
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
        alpha = config["lora_alpha"]
        for pattern, value in (config.get("alpha_pattern") or {}).items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module.name):
                alpha = value
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


def _pair_of(file, module):
    """A and B of a module in our layout: (…, D, r) and (r, E)."""
    arrays = []
    for suffix in module.suffixes:
        key = f"{_PREFIX}{module.name}{suffix}"
        if key not in file.shapes:
            raise ValueError(
                "An update needs two tensors. Received: no "
                f"{key!r} in {str(file.path)!r}"
            )
        arrays.append(_float(file, key))
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


def _pair(module, name):
    """A and B of a module in PEFT's layout; None if the update leaves it out."""
    update = _update_of(module.kernel, name)
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


def _saved_module(key, prefix):
    """The module that PEFT saves as a whole: a head, or one of the body."""
    in_body = not prefix or key.startswith(prefix)
    return key.rpartition(".")[0] if in_body else key.partition(".")[0]


def _update_of(kernel, name):
    is_adapted = isinstance(kernel, LowRankKernel)
    return kernel.updates.get(name) if is_adapted else None


def _check_all_written(model, name, adapted):
    """Raises unless the modules cover every update of this name."""
    covered = {}
    for module in adapted:
        key = (id(module.layer), module.attribute)
        start, stop = module.columns
        covered.setdefault(key, set()).update(range(start, stop))
    found, lost = False, []
    for layer in adaptable_layers(model):
        for attribute in layer.kernel_parts():
            update = _update_of(getattr(layer, attribute), name)
            if update is None:
                continue
            found = True
            columns = covered.get((id(layer), attribute), set())
            if any(not columns.issuperset(range(*x)) for x in update.columns):
                lost.append(layer.path or layer.name)
    if not found:
        raise ValueError(
            "`name` must be the name of low-rank updates of the model; add them by "
            f"`training.enable_lora`. Received: name={name!r}"
        )
    if lost:
        raise ValueError(
            "Each update must be of a kernel that is a module in transformers. "
            f"Received: updates of {preview(lost)}"
        )


def _config(model, adapted, modules, name):
    """The fields of `adapter_config.json`."""
    _, task = family_of(model, None)
    updates = {x.name: _update_of(x.kernel, name) for x in adapted}
    ranks = {x.name: _pair(x, name)[0].shape[0] for x in adapted}
    alphas = {x: update.initial_scale * ranks[x] for x, update in updates.items()}
    rank, alpha = next(iter(ranks.values())), next(iter(alphas.values()))
    ends = {x.name.rpartition(".")[2] for x in adapted}
    # A name alone means every module with this name.
    alike = {x for x in modules if x.rpartition(".")[2] in ends}
    return {
        "peft_type": "LORA",
        "task_type": _TASK_TYPES.get(task),
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
    if not isinstance(config.get("lora_alpha"), int | float):
        raise ValueError(
            f"`lora_alpha` in {path.name} must be a number. Received: "
            f"lora_alpha={shown(config.get('lora_alpha'))} in {str(path)!r}"
        )


def _float(file, key):
    return file.read(key).astype("float32")


def _tensor(array):
    return Tensor(array.shape, "F32", lambda: array)

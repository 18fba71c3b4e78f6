"""LoRA weights in PEFT's folders: `adapter_config.json` and its tensors.

PEFT names the tensors after the modules of transformers' model:
`base_model.model.<module>.lora_A.weight` (r, D) and `lora_B.weight` (E, r), or
`lora_embedding_A` (r, V) and `lora_embedding_B` (D, r) of an embedding, with
ΔW = s B A. Ours are Aᵀ and Bᵀ, one pair for each part of a fused kernel. Modules have
the names of transformers 5 in what is written; names of transformers 4 are read, too.
"""

import os

import keras
import numpy as np

from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import naming_hub_folders
from keras_attn.layers.adaptation.kept import own_weights
from keras_attn.layers.adaptation.lora import LoRAReport, train_only_updates
from keras_attn.layers.adaptation.low_rank import LowRankUpdate, get_base
from keras_attn.layers.adaptation.paths import check_adapter_name
from keras_attn.models.checkpoints.adapter_config import MERGE, AdapterConfig
from keras_attn.models.checkpoints.folder import ADAPTER_FILES, preview
from keras_attn.models.checkpoints.mapping import get_variables
from keras_attn.models.checkpoints.modules import (
    SUFFIXES,
    Modules,
)
from keras_attn.models.checkpoints.tensors import TensorFile

FILES = ADAPTER_FILES
PREFIX = "base_model.model."
_PICKLED = "adapter_model.bin"


class _Tensors:
    """The tensors of a file, by their keys of today without the prefix.

    Args:
        file: The file.
        modules: The modules of the model.
    """

    def __init__(self, file: TensorFile, modules: Modules):
        self.path = str(file.path)
        self._file = file
        self._keys = {
            modules.family.module_key(key.removeprefix(PREFIX)): key
            for key in file.shapes
            if key.startswith(PREFIX)
        }
        self.others = sorted(set(file.shapes) - set(self._keys.values()))
        # Modules of today and their names in the file, both with "#" for numbers.
        self._forms = {}
        for key, name in self._keys.items():
            ours, theirs = (_form(_module(x)) for x in (key, name.removeprefix(PREFIX)))
            if ours.count("#") == theirs.count("#"):
                self._forms[ours] = theirs

    def __iter__(self):
        return iter(self._keys)

    def __contains__(self, key):
        return key in self._keys

    def name(self, key: str) -> str:
        """The key in the file, without the prefix."""
        return self._keys[key].removeprefix(PREFIX)

    def names(self, name: str) -> tuple[str, ...]:
        """The name that a module has, or would have, in the file, and today's name."""
        numbers = iter([x for x in name.split(".") if x.isdigit()])
        form = self._forms.get(_form(name))
        if form is None:
            return (name,)
        theirs = (next(numbers) if x == "#" else x for x in form.split("."))
        return tuple({".".join(theirs): None, name: None})

    def read(self, key: str) -> np.ndarray:
        """The tensor, as float32.

        Raises:
            ValueError: If a number is NaN or infinite.
        """
        array = self._file.read(self._keys[key]).astype("float32")
        if not np.isfinite(array).all():
            raise ValueError(
                "The tensors must be finite; the training may have diverged. "
                f"Received: NaN or infinity in {self._keys[key]!r} of {self.path!r}"
            )
        return array


def _module(key):
    """The module of a key."""
    for suffix in SUFFIXES:
        if key.endswith(suffix):
            return key.removesuffix(suffix)
    return key.rpartition(".")[0]


def _form(module):
    return ".".join("#" if x.isdigit() else x for x in module.split("."))


@naming_hub_folders()
def load_lora(
    model: keras.Model, folder: str | os.PathLike, *, name: str = "default"
) -> LoRAReport:
    """Reads LoRA weights from a folder of PEFT's, and switches them on.

    Layers that the folder has as a whole (`modules_to_save`), such as the classifier,
    take the place of the model's while the adapter is on: `training.set_adapters` and
    `adapters_off` bring the model's back. Everything else is fixed, as after
    `training.enable_lora`: compile the model before `fit`.

    Args:
        model: A model with a counterpart in transformers, such as from
            `load_checkpoint`, with the weights that the adapter was trained on.
        folder: With `adapter_config.json` and `adapter_model.safetensors`; or its name
            on the hub, `hf://owner/name[@revision]`.
        name: Name of the adapter.

    Returns:
        As from `training.enable_lora`.

    Raises:
        FileNotFoundError: If a file is missing.
        PermissionError, ConnectionError: Of a name on the hub, as in `load_checkpoint`.
        ValueError: If the folder has no LoRA, a field without a counterpart here, or
            tensors of another base model; the model has an adapter of this name; or its
            output layer is a table that is updated, which PEFT uses as it was.

    Example:
        Needs a checkpoint and its adapters:

        ```python
        from keras_attn import models

        model = models.load_checkpoint("bert-base-uncased", "classifier", num_classes=2)
        print(models.load_lora(model, "bert-lora-sst2"))
        ```
    """
    check_adapter_name(name)
    path = local_folder(folder, "adapter")
    _check_files(path)
    config = AdapterConfig(path / FILES.config)
    modules = Modules(model)
    file = _Tensors(TensorFile(path / FILES.weights), modules)
    kernels, whole = _assigned(file, modules, config)
    _check_targets(config, modules, [x for parts in kernels for x in parts], file)
    changed = [parts[0].kernel for parts in kernels] + [x.variable for x, _ in whole]
    modules.check_ties({id(variable) for variable in changed})
    updates = [_update(file, config, parts, name) for parts in kernels]
    for parts, _, _ in updates:
        parts[0].layer.check_update(name)
    values = {keys[0]: _whole(file, weight, keys) for weight, keys in whole}
    for parts, update, pairs in updates:
        parts[0].layer.add_update(update)
        for own, pair in zip(update.pairs, pairs, strict=True):
            for variable, value in zip(own, pair, strict=True):
                variable.assign(value)
    # Integers would round what is read, and not train.
    whole = _with_variables(model, modules, whole)
    report = train_only_updates(model, name, _by_owner(model, whole))
    for weight, keys in whole:
        _assign(weight, values[keys[0]])
    return report


def _check_files(path):
    """Raises for a folder of PEFT's whose files cannot be read, with what to do."""
    if not (path / FILES.config).exists():
        named = sorted(x.parent.name for x in path.glob(f"*/{FILES.config}"))
        if named:
            raise FileNotFoundError(
                f"`folder` must have {FILES.config} itself; PEFT writes adapters with "
                f"a name into folders of their own: give one of {preview(named)}. "
                f"Received: folder={str(path)!r}"
            )
    elif not (path / FILES.weights).exists() and (path / _PICKLED).exists():
        raise FileNotFoundError(
            f"`folder` must have {FILES.weights}: {_PICKLED} can contain code and is "
            "never opened here. If you trust it, load it with PEFT and save it again "
            f"(`model.save_pretrained(folder)`). Received: folder={str(path)!r}"
        )


def _assigned(file, modules, config):
    """Modules with LoRA weights, by kernel, and the weights given as a whole."""
    by_key = {key: (weight, keys) for keys, weight in modules.weights for key in keys}
    kernels, whole, unknown = {}, {}, list(file.others)
    for key in file:
        module = None
        for suffix in SUFFIXES:
            if key.endswith(suffix):
                module = modules.by_name.get(key.removesuffix(suffix))
        if module is not None and key.removeprefix(module.name) in module.suffixes:
            group = kernels.setdefault(id(module.layer), {})
            group[module.name] = module
        elif key in by_key:
            weight, keys = by_key[key]
            whole[id(weight)] = (weight, keys)
            others = [x for x in by_key if _module(x) == _module(key)]
            unknown += [x for x in others if x not in file]
            if not all(x in file for x in keys):
                raise config.refuse(
                    "modules_to_save",
                    f"must name all of {', '.join(map(_module, keys))}, or none: they "
                    f"are one weight here. {MERGE}",
                )
        else:
            unknown.append(file.name(key))
    for key in unknown:
        _refuse_table(key, modules, config)
    if unknown:
        raise ValueError(
            "The tensors must be LoRA weights of kernels of this model, or whole "
            f"layers of it. Received: {preview(set(unknown))} in {file.path!r}, and a "
            f"model with the kernels {preview(list(modules.by_name))}"
        )
    missing = [
        key
        for key in by_key
        if key not in file and config.is_saved(*file.names(_module(key)))
    ]
    if missing:
        raise config.refuse(
            "modules_to_save",
            f"must name modules that {file.path!r} has; it lacks {preview(missing)}",
        )
    groups = [
        sorted(group.values(), key=lambda module: module.columns)
        for group in kernels.values()
    ]
    return groups, list(whole.values())


def _refuse_table(key, modules, config):
    """Raises if a tensor belongs to a weight that takes no LoRA weights or copy here.

    Args:
        key: Its key, without the prefix.
        modules: The modules of the model.
        config: The configuration.
    """
    module = _module(key)
    is_update = key.endswith(SUFFIXES)
    tied = modules.family.tied.get(modules.task, {})
    is_output = f"{module}.weight" in map(modules.family.module_key, tied)
    if is_output and not is_update and not config.is_saved(module):
        raise ValueError(
            "The folder must not have the tables of the token embedding, which PEFT "
            "saves if tokens were added (`save_embedding_layers`): the output layer "
            f"{module!r} is a table here. {MERGE}. Received: {key!r} in "
            f"{str(config.path)!r}"
        )
    if is_output:
        raise config.refuse(
            "target_modules" if is_update else "modules_to_save",
            f"must not name {module!r}, the output layer: it is the table of the token "
            "embedding here. Train the adapter without it",
        )
    if is_update and module in modules.names():
        raise config.refuse(
            "target_modules",
            f"must not name {module!r}, which takes no LoRA weights here. {MERGE}",
        )


def _update(file, config, parts, name):
    """The parts, their LoRA weights, and A and B of each part."""
    pairs = [_read_pair(file, module) for module in parts]
    names = [file.names(module.name) for module in parts]
    ranks = tuple(a.shape[-1] for a, _ in pairs)
    for module, rank in zip(names, ranks, strict=True):
        if config.rank(*module) != rank:
            raise config.refuse(
                "rank_pattern" if config.has_own_rank(*module) else "r",
                f"must be the rank of the tensors; {module[0]!r} has {rank} in them",
            )
    layer = parts[0].layer
    update = LowRankUpdate(
        ranks,
        tuple(config.scale(*module) for module in names),
        columns=tuple(module.columns for module in parts),
        dropout=config.dropout,
        dtype=layer.dtype_policy,
        name=name,
    )
    return parts, update, pairs


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


def _read_pair(file, module):
    """A and B of a module in our layout: (…, D, r) and (r, E)."""
    arrays = []
    for suffix in module.suffixes:
        key = module.name + suffix
        if key not in file:
            raise ValueError(
                f"LoRA needs two tensors a module. Received: no {key!r} in "
                f"{file.path!r}"
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
        "The LoRA weights must be of a base model of these sizes. Received: A and B of "
        f"{module.name!r} with shapes {a.shape} and {b.shape}, for a kernel of shape "
        f"{(*inner, stop - start)}"
    )


def _check_targets(config, modules, found, file):
    """Raises if the fields do not name exactly the modules with LoRA weights."""
    names = {module.name for module in found}
    others = [x for x in sorted(names) if config.is_target(*file.names(x)) is False]
    if others:
        raise config.refuse(
            "target_modules",
            "and the fields beside it must name all modules with tensors, or PEFT "
            f"would leave out {preview(others)}",
        )
    missing = [
        x
        for x in sorted(set(modules.by_name) - names)
        if config.is_target(*file.names(x))
    ]
    if missing:
        raise ValueError(
            "The adapter's base must have the size of this model: all modules with the "
            f"names in `target_modules` need one. Received: none of {preview(missing)} "
            f"in {file.path!r}"
        )


def _with_variables(model, modules, whole):
    """The weights, once quantized ones have become variables."""
    wanted = {keys[0] for _, keys in whole}
    for weight, _ in whole:
        for kernel in get_variables(weight):
            if id(kernel) in modules.owners:
                modules.owners[id(kernel)].dequantize_kernel()
    return [
        (weight, keys) for keys, weight in Modules(model).weights if keys[0] in wanted
    ]


def _by_owner(model, whole):
    """The layers that own the weights, and their variables."""
    wanted = {id(get_base(x)) for weight, _ in whole for x in get_variables(weight)}
    found = []
    for layer in model._flatten_layers():
        own = [x for x in own_weights(layer) if id(x) in wanted]
        if own:
            found.append((layer, own))
    return found


def _assign(weight, value):
    """Gives a weight a value, below its LoRA weights."""
    kernels = get_variables(weight)
    ends = np.cumsum([kernel.shape[-1] for kernel in kernels])[:-1]
    parts = np.split(value, ends, axis=-1) if len(kernels) > 1 else [value]
    for kernel, part in zip(kernels, parts, strict=True):
        get_base(kernel).assign(part)

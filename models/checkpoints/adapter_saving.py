"""Writes LoRA weights as folders of PEFT's, see `adapters`."""

import os
import re
from typing import Any

import keras
import numpy as np

from keras_attn.files.hub_names import is_hub_name, parse_hub_name
from keras_attn.layers.adaptation.kernel_layer import kernel_layers
from keras_attn.layers.adaptation.switching import only_adapter
from keras_attn.models.checkpoints.adapters import FILES, PREFIX
from keras_attn.models.checkpoints.folder import preview, write_folder
from keras_attn.models.checkpoints.modules import Module, Modules
from keras_attn.models.checkpoints.saving import make_array
from keras_attn.models.checkpoints.tensors import Tensor

# Task to PEFT's, and what it then expects to find saved as a whole.
_TASK_TYPES: dict[str, tuple[str, set[str]]] = {
    "classifier": ("SEQ_CLS", {"classifier", "score"}),
    "token_classifier": ("TOKEN_CLS", {"classifier", "score"}),
    "span_qa": ("QUESTION_ANS", {"qa_outputs"}),
    "causal_lm": ("CAUSAL_LM", set()),
}


def save_lora(
    model: keras.Model,
    folder: str | os.PathLike,
    *,
    name: str = "default",
    base_model: str | None = None,
) -> None:
    """Writes LoRA weights as a folder that PEFT reads.

    Layers that train as a whole are written too (`modules_to_save`). Files are written
    to a temporary folder and renamed once they are complete.

    Args:
        model: A model after `training.enable_lora` or `load_lora`, with a counterpart
            in transformers.
        folder: Where to write; created if it is missing. Other files in it are kept.
        name: Name of the adapter.
        base_model: What PEFT loads as the base, a name or a folder, for the
            configuration. Default: the repository and the commit on the hub that the
            model was loaded from.

    Raises:
        ValueError: If the model has no LoRA weights of this name, or some of a kernel
            without a module in transformers or of a table that is the output layer,
            too.
        NotADirectoryError: If `folder` is a file.

    Example:
        ```python
        from keras_attn import models, training

        classifier = models.build_bert_classifier(
            models.build_bert("tiny", vocabulary_size=100), num_classes=2
        )
        training.enable_lora(classifier, rank=4, also_train="classifier")
        models.save_lora(classifier, "my-lora", base_model="bert-base-uncased")
        ```
    """
    with only_adapter(model, name):
        _save(model, folder, name, base_model)


def _save(model, folder, name, base_model):
    """Writes the adapter that is on."""
    modules = Modules(model)
    whole = modules.trained_as_a_whole()
    # A head is written as a whole, with the sums of what it has learned.
    others = [x for x in modules.by_name.values() if not _is_inside(x.name, whole)]
    adapted = [x for x in others if x.update(name) and _parts(x, name)]
    _check_all_written(model, name, adapted, modules, whole)
    changed = {id(module.kernel) for module in adapted}
    tensors = {}
    for module in adapted:
        for suffix, array in zip(module.suffixes, _pair(module, name), strict=True):
            tensors[f"{PREFIX}{module.name}{suffix}"] = _tensor(array)
    for keys, weight in modules.weights:
        if _is_inside(keys[0], whole):
            changed.add(id(weight.variable))
            for index, key in enumerate(keys):
                tensors[PREFIX + key] = _tensor(make_array(weight, index))
    modules.check_ties(changed)
    config = _config(adapted, others, name)
    kind, heads = _TASK_TYPES.get(modules.task, (None, set()))
    alike = [x for x in modules.names() if x.endswith(tuple(heads))]
    if "token_ids" in [tensor.name for tensor in model.inputs] and (
        set(alike) <= set(whole) and bool(alike) == bool(heads)
    ):
        # PEFT gives texts to a model with a type, and expects a head that it trained.
        config |= {"task_type": kind}
    config |= _base(model, base_model)
    config |= {"modules_to_save": whole or None}
    write_folder(folder, config, tensors, 0, None, FILES)


def _base(model, base_model):
    """The fields of what PEFT loads as the base."""
    name = base_model or getattr(model, "source", None)
    if name is not None and is_hub_name(name):
        repository, revision = parse_hub_name(name)
        return {"base_model_name_or_path": repository, "revision": revision}
    return {"base_model_name_or_path": name}


def _parts(module: Module, name) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Scale, A and B of each part of LoRA weights in the columns of a module."""
    update: Any = module.update(name)
    start, stop = module.columns
    found = []
    for (first, last), (a, b), scale in zip(
        update.columns, update.pairs, update.scales, strict=True
    ):
        if first < stop and start < last:
            up = np.zeros((b.shape[0], stop - start), "float32")
            begin, end = max(first, start), min(last, stop)
            part = keras.ops.convert_to_numpy(b)[:, begin - first : end - first]
            up[:, begin - start : end - start] = part
            found.append((scale, keras.ops.convert_to_numpy(a), up))
    return found


def _pair(module: Module, name) -> tuple[np.ndarray, np.ndarray]:
    """A and B of a module in PEFT's layout, with the scale of the first part."""
    scales, downs, ups = zip(*_parts(module, name), strict=True)
    ups = [up * (scale / scales[0]) for scale, up in zip(scales, ups, strict=True)]
    a, b = np.concatenate(downs, -1), np.concatenate(ups, 0)
    if a.ndim == 4:
        return a.transpose(3, 2, 0, 1), b.T[:, :, None, None]
    return a.T, b.T


def _is_inside(name, whole):
    """Whether a module, or a key, is in one of the modules."""
    return any(f"{name}.".startswith(f"{module}.") for module in whole)


def _check_all_written(model, name, adapted, modules, whole):
    """Raises if a kernel with LoRA weights of this name is in none of the modules."""
    covered = {}
    merged = [x for x in modules.by_name.values() if _is_inside(x.name, whole)]
    for module in (*adapted, *merged):
        columns = covered.setdefault(id(module.layer), set())
        columns.update(range(*module.columns))
    found, lost = False, []
    for layer in kernel_layers(model):
        update = layer.updates.get(name)
        if update is None:
            continue
        found = True
        columns = covered.get(id(layer), set())
        if any(not columns.issuperset(range(*x)) for x in update.columns):
            lost.append(layer.path or layer.name)
    if not found or not adapted:
        raise ValueError(
            "`name` must be the name of an adapter of the model; add one by "
            f"`training.enable_lora`. Received: name={name!r}"
        )
    if lost:
        raise ValueError(
            "LoRA weights must be of kernels that are modules in transformers. "
            f"Received: LoRA weights of {preview(lost)}"
        )


def _config(adapted, others, name):
    """The fields of `adapter_config.json`."""
    updates: Any = {x.name: x.update(name) for x in adapted}
    # Parts with an A of their own may be one module.
    ranks: Any = {x.name: len(_pair(x, name)[0]) for x in adapted}
    alphas = {x.name: _parts(x, name)[0][0] * ranks[x.name] for x in adapted}
    rank, alpha = next(iter(ranks.values())), next(iter(alphas.values()))
    ends = {x.name.rpartition(".")[2] for x in adapted}
    # A name without a path means every module with this name.
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


def _tensor(array):
    return Tensor(array.shape, "F32", lambda: array)

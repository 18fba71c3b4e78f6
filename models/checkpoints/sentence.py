"""Pooling and projections of a folder of sentence-transformers.

```
modules.json               the modules in their order, and the folder of each
1_Pooling/config.json      how the features of the tokens become one vector
2_Dense/                   a dense layer after it: config.json, model.safetensors
3_Normalize/               the vector is scaled to length 1, if the module is listed
```

`data.load_text_tokenizer` reads what such a folder says about texts.
"""

import re
from pathlib import Path
from typing import Any

import keras

from keras_attn.files.reading import (
    check_values,
    get_flag,
    get_object,
    get_text,
    read_json,
    read_json_list,
    shown,
)
from keras_attn.layers import TokenPooling
from keras_attn.models.checkpoints.mapping import layers_by_name
from keras_attn.models.parts.functional import numbered_names
from keras_attn.models.parts.heads import Projection

MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_WEIGHTS = "model.safetensors"
# The library's name of a pooling to ours; in the order in which several of older files
# are concatenated.
_POOLINGS = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_length",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_OLD_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# What becomes of every key: None is applied, a tuple has the values that change
# nothing. The widths follow from the weights.
POOLING_KEYS: dict[str, tuple[Any, ...] | None] = {
    **dict.fromkeys(_OLD_KEYS),
    "embedding_dimension": None,
    "include_prompt": None,
    "pooling_mode": None,
    "word_embedding_dimension": None,
}
DENSE_KEYS: dict[str, tuple[Any, ...] | None] = {
    "activation_function": None,
    "bias": None,
    "in_features": None,
    "module_input_name": (None, "sentence_embedding"),
    "module_output_name": (None, "sentence_embedding"),
    "out_features": None,
    "use_residual": (None, False),
}
NORMALIZE_KEYS: dict[str, tuple[Any, ...] | None] = {
    "module_input_name": (None, "sentence_embedding"),
    "module_output_name": (None, "sentence_embedding"),
}
# PyTorch's class to Keras' name.
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": None,
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.SiLU": "silu",
}


def read_sentence_modules(folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """The settings in the modules of a sentence folder; empty without `modules.json`.

    Args:
        folder: The folder.

    Returns:
        The arguments of a builder of sentence encoders; and the file with the weights
        of each dense layer, by the prefix of its keys.

    Raises:
        ValueError: If a module, or a setting of one, is not supported; it is named.
    """
    path = folder / MODULES
    if not path.exists():
        return {}, {}
    modules = read_json_list(path)
    kinds = [_kind(module, path) for module in modules]
    dense = [kind for kind in kinds[2:] if kind == "Dense"]
    expected = ["Transformer", "Pooling", *dense]
    if kinds not in (expected, [*expected, "Normalize"]):
        raise ValueError(
            f"{MODULES} must list the modules Transformer, Pooling, any number of "
            "Dense, and Normalize at the end or not at all; others are not supported. "
            f"Received: {str(path)!r}, with {', '.join(kinds)}"
        )
    places = [_place(module, folder, path) for module in modules]
    if places[0] != folder:
        raise ValueError(
            f"{MODULES} must have its Transformer in the folder itself, with the path "
            f'"". Received: {str(path)!r}, path={modules[0].get("path")!r}'
        )
    projections, files = [], {}
    for place in places[2 : 2 + len(dense)]:
        files[f"sentence_projection_{len(projections)}."] = place / _WEIGHTS
        projections.append(_read_dense(place / "config.json"))
    normalize = kinds[-1] == "Normalize"
    if normalize and (places[-1] / "config.json").exists():
        config = places[-1] / "config.json"
        check_values(read_json(config), NORMALIZE_KEYS, config, closed=True)
    arguments = {
        "pooling": _read_pooling(places[1] / "config.json", folder),
        "projections": tuple(projections),
        "normalize": normalize,
    }
    return arguments, files


def _kind(module: Any, path: Path) -> str:
    name = module.get("type") if isinstance(module, dict) else None
    if not isinstance(name, str):
        raise ValueError(
            f"{MODULES} must be a list of modules with a type. "
            f"Received: {str(path)!r}, {shown(module)}"
        )
    if module.get("kwargs"):
        raise ValueError(
            f"`kwargs` of a module in {MODULES} must be empty; they are not supported. "
            f"Received: {str(path)!r}, {shown(module)}"
        )
    return name.rpartition(".")[2]


def _place(module: dict, folder: Path, path: Path) -> Path:
    name = module.get("path", "")
    # A name, not a path: it must not lead out of the folder.
    if not isinstance(name, str) or not re.fullmatch(r"([\w][\w.-]*)?", name):
        raise ValueError(
            f"`path` in {MODULES} must name a folder in its own folder. "
            f"Received: {str(path)!r}, path={shown(name)}"
        )
    return folder / name


def _read_pooling(path: Path, folder: Path) -> str | tuple[str, ...]:
    fields = read_json(path)
    check_values(fields, POOLING_KEYS, path, closed=True)
    modes = fields.get("pooling_mode")
    if modes is None:
        flags = [get_flag(fields, key, False, path) for key in _OLD_KEYS]
        old = zip(_OLD_KEYS.values(), flags, strict=True)
        modes = [mode for mode, is_on in old if is_on] or ["mean"]
    modes = modes if isinstance(modes, list) else [modes]
    if not modes or not all(
        isinstance(mode, str) and mode in _POOLINGS for mode in modes
    ):
        raise ValueError(
            f"`pooling_mode` in {path.name} must be one of {', '.join(_POOLINGS)}, or "
            f"a list of them. Received: {str(path)!r}, pooling_mode={shown(modes)}"
        )
    if not get_flag(fields, "include_prompt", True, path):
        _check_no_prompts(folder / _PROMPTS, path)
    found = tuple(_POOLINGS[mode] for mode in modes)
    return found[0] if len(found) == 1 else found


def _check_no_prompts(prompts: Path, path: Path) -> None:
    """Raises if texts get a prompt, which a pooling would have to leave out."""
    fields = read_json(prompts) if prompts.exists() else {}
    named = get_object(fields, "prompts", prompts)
    if any(named.values()):
        raise ValueError(
            f"`include_prompt` in {path.name} must be true if {prompts.name} has "
            "prompts; pooling without their tokens is not supported. Received: "
            f"{str(path)!r}, include_prompt=False, prompts={shown(named)}"
        )


def _read_dense(path: Path) -> Projection:
    fields = read_json(path)
    check_values(fields, DENSE_KEYS, path, closed=True)
    name = get_text(fields, "activation_function", path)
    name = "torch.nn.modules.activation.Tanh" if name is None else name
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"`activation_function` in {path.parent.name}/{path.name} must be one of "
            f"{', '.join(_ACTIVATIONS)}. Received: {str(path)!r}, "
            f"activation_function={shown(name)}"
        )
    units = fields.get("out_features")
    if type(units) is not int or units < 1:
        raise ValueError(
            f"`out_features` in {path.parent.name}/{path.name} must be a positive "
            f"integer. Received: {str(path)!r}, out_features={shown(units)}"
        )
    use_bias = bool(get_flag(fields, "bias", True, path))
    return Projection(units, _ACTIVATIONS[name], use_bias)


def sentence_files(model: keras.Model) -> dict[str, Any]:
    """The files of a sentence folder besides the weights: name to content.

    Args:
        model: A sentence encoder.

    Returns:
        As `write_folder` takes them; empty for any other model.

    Raises:
        ValueError: If a dense layer has an activation without a name there.
    """
    layers = layers_by_name(model)
    pooling = layers.get("sentence_pooling")
    if pooling is None:
        return {}
    pooled = [layer for layer in model.layers if isinstance(layer, TokenPooling)]
    theirs = {ours: name for name, ours in _POOLINGS.items()}
    modes = [theirs[layer.pooling] for layer in pooled]
    width = pooled[0].output.shape[-1]
    fields: dict[str, Any] = {"word_embedding_dimension": width, "include_prompt": True}
    if len(modes) == 1:
        # All versions of the library read these.
        fields |= {key: name == modes[0] for key, name in _OLD_KEYS.items()}
    else:
        fields["pooling_mode"] = modes
    files: dict[str, Any] = {"1_Pooling/config.json": fields}
    listed = ["", "1_Pooling"]
    for name in numbered_names(layers, "sentence_projection_"):
        place = f"{len(listed)}_Dense"
        listed.append(place)
        layer = layers[name]
        files[f"{place}/config.json"] = {
            "in_features": layer.kernel.shape[0],
            "out_features": layer.kernel.shape[1],
            "bias": layer.use_bias,
            "activation_function": _activation_name(layer),
        }
    if "sentence_norm" in layers:
        listed.append(f"{len(listed)}_Normalize")
    kinds = ["Transformer", *(place.partition("_")[2] for place in listed[1:])]
    files[MODULES] = [
        {
            "idx": number,
            "name": str(number),
            "path": place,
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, (place, kind) in enumerate(zip(listed, kinds, strict=True))
    ]
    return files


def _activation_name(layer: Any) -> str:
    for name, ours in _ACTIVATIONS.items():
        if layer.activation is keras.activations.get(ours):
            return name
    raise ValueError(
        "`activation` of a projection must be one that sentence-transformers has, one "
        f"of {', '.join(map(str, _ACTIVATIONS.values()))}. Received: {layer.name!r}, "
        f"activation={layer.activation!r}"
    )


def weights_file(key: str) -> str | None:
    """The file, in the folder, of a tensor of a dense layer; None for any other.

    Args:
        key: Of the tensor, such as "sentence_projection_0.linear.weight".
    """
    found = re.match(r"sentence_projection_(\d+)\.", key)
    return found and f"{int(found[1]) + 2}_Dense/{_WEIGHTS}"

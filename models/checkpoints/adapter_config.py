"""The fields of PEFT's `adapter_config.json`: what is applied, and what is refused."""

import functools
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keras_attn.files.reading import read_json, shown

# `LoraConfig` of PEFT 0.21.2 and of earlier versions. These are applied, or compared
# with the tensors, whose keys name the modules that they belong to.
APPLIED = (
    "alpha_pattern",
    "exclude_modules",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "use_rslora",
)
# These must have the value, or be empty: other values ask for what we lack.
REFUSED: dict[str, Any] = {
    **dict.fromkeys(
        "alora_invocation_tokens arrow_config enable_lora kasa_config "
        "layer_replication megatron_config monteclora_config target_parameters "
        "trainable_token_indices use_bdlora velora_config".split()
    ),
    **dict.fromkeys("ensure_weight_tying lora_bias use_dora use_qalora".split(), False),
    "bias": "none",
}
# These change no LoRA weight that is read: names, the way to initial values, how the
# base's weight is stored, options of what is refused.
WITHOUT_EFFECT = (
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "loftq_config",
    "lora_ga_config",
    "megatron_core",
    "merge_weights",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
)
# Initial values of A and B for which PEFT also changes the base.
_CHANGING_BASE = ("corda", "loftq", "lora_ga", "olora", "pissa")
MERGE = "Merge the adapter with PEFT (`merge_and_unload`), and load the whole model"
# What PEFT saves as a whole for these tasks, if the model has it.
_HEADS = {
    "SEQ_CLS": ("classifier", "score"),
    "TOKEN_CLS": ("classifier", "score"),
    "QUESTION_ANS": ("qa_outputs",),
}


class AdapterConfig:
    """A checked `adapter_config.json`.

    A module has the name that it has in the folder's tensors, and the one of
    transformers today, if that is another: fields may have either.

    Args:
        path: The file.

    Attributes:
        path: The file.
        dropout: Probability in [0, 1) of dropping an input of A.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not of LoRA, or has a field that we lack.
    """

    def __init__(self, path: Path):
        self.path = path
        self._fields = read_json(path)
        self._check_known()
        self._check_values()
        self.dropout = float(self._fields.get("lora_dropout") or 0.0)

    def rank(self, *names: str) -> int:
        """The rank of a module's LoRA weights."""
        return _by_pattern(self._map("rank_pattern"), names, self._fields["r"])

    def has_own_rank(self, *names: str) -> bool:
        """Whether `rank_pattern` has the rank of a module's LoRA weights."""
        return _by_pattern(self._map("rank_pattern"), names, None) is not None

    def scale(self, *names: str) -> float:
        """The scale of the product of A and B of a module."""
        rank = self.rank(*names)
        alpha = _by_pattern(
            self._map("alpha_pattern"), names, self._fields["lora_alpha"]
        )
        return alpha / (math.sqrt(rank) if self._fields.get("use_rslora") else rank)

    @functools.cached_property
    def saved(self) -> tuple[str, ...]:
        """The ends of names of modules that the folder has as a whole."""
        task = _HEADS.get(str(self._fields.get("task_type")), ())
        return (*(self._fields.get("modules_to_save") or ()), *task)

    def is_saved(self, *names: str) -> bool:
        """Whether PEFT saves a module as a whole, by itself or in another one."""
        parts = [name.split(".") for name in names]
        paths = [".".join(x[:end]) for x in parts for end in range(1, len(x) + 1)]
        return any(path.endswith(self.saved) for path in paths)

    def is_target(self, *names: str) -> bool | None:
        """Whether PEFT gives a module LoRA weights; None if only PEFT can say it."""
        targets = self._fields.get("target_modules")
        if targets is None or targets == "all-linear":
            return None
        excluded = self._fields.get("exclude_modules") or ()
        return not any(
            _is_named(name, excluded)
            or any(re.match(rf"(^|.*\.){x}($|\..*)", name) for x in self.saved)
            for name in names
        ) and any(_is_named(x, targets) and self._is_in_layers(x) for x in names)

    def refuse(self, field: str, expected: str) -> ValueError:
        """An error about a field.

        Args:
            field: Its name.
            expected: What follows the name and the file in the message.
        """
        return ValueError(
            f"`{field}` in {self.path.name} {expected}. Received: "
            f"{field}={shown(self._fields.get(field))} in {str(self.path)!r}"
        )

    def _is_in_layers(self, module):
        layers = self._fields.get("layers_to_transform")
        if layers is None or layers == []:
            return True
        patterns = self._fields.get("layers_pattern") or ()
        patterns = (patterns,) if isinstance(patterns, str) else patterns
        expressions = [rf"(?:^|.*?\.){x}\.(\d+)\." for x in patterns]
        for expression in expressions or [r".*?\.[^.]*\.(\d+)\."]:
            found = re.match(expression, module)
            if found:
                return int(found[1]) in (
                    layers if isinstance(layers, list) else [layers]
                )
        return False

    def _map(self, field) -> Mapping[str, Any]:
        return self._fields.get(field) or {}

    def _check_known(self):
        if self._fields.get("peft_type") != "LORA":
            raise self.refuse("peft_type", "must be LORA")
        for field, value in self._fields.items():
            if field in APPLIED or field in WITHOUT_EFFECT:
                continue
            if value and value != REFUSED.get(field):
                raise self.refuse(field, f"has no counterpart here. {MERGE}")
        start = self._fields.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGING_BASE):
            raise self.refuse(
                "init_lora_weights",
                "must be one that keeps the base: save with PEFT's "
                "`path_initial_model_for_weight_conversion`",
            )

    def _check_values(self):
        checks: dict[str, tuple[Callable[[Any], bool], str]] = {
            "r": (_is_rank, "a positive integer"),
            "lora_alpha": (_is_number, "a number"),
            "lora_dropout": (
                lambda x: x is None or (_is_number(x) and 0 <= x < 1),
                "in [0, 1)",
            ),
            "rank_pattern": (
                lambda x: _are_patterns(x, _is_rank),
                "regular expressions with positive integers",
            ),
            "alpha_pattern": (
                lambda x: _are_patterns(x, _is_number),
                "regular expressions with numbers",
            ),
            "use_rslora": (lambda x: x in (None, True, False), "true or false"),
            "modules_to_save": (
                lambda x: x is None or (_are_names(x) and all(map(_is_expression, x))),
                "a list of names of modules",
            ),
            "target_modules": (
                _are_modules,
                "names of modules or a regular expression",
            ),
            "exclude_modules": (
                _are_modules,
                "names of modules or a regular expression",
            ),
            "layers_to_transform": (_are_layers, "an integer or a list of integers"),
            "layers_pattern": (_are_modules, "a name or a list of names"),
        }
        for field, (is_right, expected) in checks.items():
            if not is_right(self._fields.get(field)):
                raise self.refuse(field, f"must be {expected}")


def _by_pattern(patterns, names, default):
    """The value of the first pattern that matches, as in PEFT."""
    for pattern, value in patterns.items():
        if any(re.match(rf"(.*\.)?({pattern})$", name) for name in names):
            return value
    return default


def _is_named(module, names):
    """Whether a regular expression is a module, or a list has it or its end."""
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _is_number(value):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _is_rank(value):
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _are_names(value):
    return isinstance(value, list) and all(isinstance(x, str) and x for x in value)


def _are_modules(value):
    if isinstance(value, str):
        return _is_expression(value)
    return value is None or _are_names(value)


def _are_layers(value):
    values = value if isinstance(value, list) else [value]
    return value is None or all(
        isinstance(x, int) and not isinstance(x, bool) for x in values
    )


def _are_patterns(patterns, is_right):
    if patterns is None:
        return True
    return isinstance(patterns, dict) and all(
        _is_expression(pattern) and is_right(value)
        for pattern, value in patterns.items()
    )


def _is_expression(pattern):
    try:
        return bool(re.compile(pattern))
    except re.error:
        return False

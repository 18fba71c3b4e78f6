"""Checkpoints in timm's naming, as its `save_for_hf` writes them."""

from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.families.timm import architectures as timm
from keras_attn.models.checkpoints.families.timm import convnext, swin, vit
from keras_attn.models.checkpoints.families.timm.architectures import (
    match_architecture,
    merge_repeated,
)
from keras_attn.models.checkpoints.mapping import Family

_FAMILIES = (
    (vit.ARCHITECTURE, vit.TIMM_VIT),
    (swin.ARCHITECTURE, swin.TIMM_SWIN),
    (convnext.ARCHITECTURE, convnext.TIMM_CONVNEXT),
)
TIMM = tuple(family for _, family in _FAMILIES)


def is_timm(config: Config) -> bool:
    """Whether a `config.json` is timm's, or of a timm model in transformers."""
    kind = config.get("model_type", timm.WRAPPER)
    return kind == timm.WRAPPER and isinstance(config.get("architecture"), str)


def get_timm_family(config: Config) -> Family:
    """The family of timm's `architecture`.

    Raises:
        ValueError: If the architecture is not supported, or a field differs from the
            same field in `model_args`.
    """
    merge_repeated(config)
    for pattern, family in _FAMILIES:
        if match_architecture(pattern, config):
            return family
    raise ValueError(
        "`architecture` in config.json must be a plain ViT, vit_base_r50_s16, DeiT, "
        "DeiT III, Swin or ConvNeXt of timm, such as vit_base_patch16_224, "
        "deit_tiny_distilled_patch16_224, swin_tiny_patch4_window7_224 or "
        f"convnext_tiny. Received: architecture={config['architecture']!r}"
    )

"""Every model type that checkpoints are read and written for, and timm's naming."""

from keras_attn.file_reading import shown
from keras_attn.models.checkpoints.families.bert import BERT, ROBERTA
from keras_attn.models.checkpoints.families.convnext import CONVNEXT
from keras_attn.models.checkpoints.families.gpt import GPT2, OPENAI_GPT
from keras_attn.models.checkpoints.families.swin import SWIN
from keras_attn.models.checkpoints.families.timm import is_timm, match_architecture
from keras_attn.models.checkpoints.families.timm_convnext import (
    CONVNEXT_ARCHITECTURE,
    TIMM_CONVNEXT,
)
from keras_attn.models.checkpoints.families.timm_swin import (
    SWIN_ARCHITECTURE,
    TIMM_SWIN,
)
from keras_attn.models.checkpoints.families.timm_vit import TIMM_VIT, VIT_ARCHITECTURE
from keras_attn.models.checkpoints.families.vit import DEIT, VIT, VIT_MAE
from keras_attn.models.checkpoints.families.xlm import XLM
from keras_attn.models.checkpoints.families.xlnet import XLNET
from keras_attn.models.checkpoints.folder import CONFIG
from keras_attn.models.checkpoints.mapping import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *(BERT, ROBERTA, XLNET, XLM, OPENAI_GPT, GPT2),
        *(VIT, DEIT, VIT_MAE, SWIN, CONVNEXT),
    )
}

TIMM_FAMILIES = (
    (VIT_ARCHITECTURE, TIMM_VIT),
    (SWIN_ARCHITECTURE, TIMM_SWIN),
    (CONVNEXT_ARCHITECTURE, TIMM_CONVNEXT),
)


def family_of(config: dict) -> Family:
    """The family that a `config.json` is of.

    Raises:
        ValueError: for a `model_type` or an `architecture` that is none of ours.
    """
    if is_timm(config):
        for pattern, family in TIMM_FAMILIES:
            if match_architecture(pattern, config):
                return family
        raise ValueError(
            f"`architecture` in {CONFIG} must be a plain ViT, vit_base_r50_s16, DeiT, "
            "DeiT III, Swin or ConvNeXt of timm, such as vit_base_patch16_224, "
            "deit_tiny_distilled_patch16_224, swin_tiny_patch4_window7_224 or "
            f"convnext_tiny. Received: architecture={config['architecture']!r}"
        )
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"`model_type` in {CONFIG} must be one of {', '.join(FAMILIES)}. "
            f"Received: model_type={shown(model_type)}"
        )
    return FAMILIES[model_type]

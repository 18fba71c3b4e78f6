"""Every model type that checkpoints are read and written for, and timm's naming."""

from keras_attn.file_reading import shown
from keras_attn.models.checkpoints.bert import BERT, ROBERTA
from keras_attn.models.checkpoints.convnext import CONVNEXT
from keras_attn.models.checkpoints.folder import CONFIG
from keras_attn.models.checkpoints.gpt import GPT2, OPENAI_GPT
from keras_attn.models.checkpoints.mapping import Family
from keras_attn.models.checkpoints.swin import SWIN
from keras_attn.models.checkpoints.timm import TIMM, is_timm
from keras_attn.models.checkpoints.vit import DEIT, VIT, VIT_MAE
from keras_attn.models.checkpoints.xlm import XLM
from keras_attn.models.checkpoints.xlnet import XLNET

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *(BERT, ROBERTA, XLNET, XLM, OPENAI_GPT, GPT2),
        *(VIT, DEIT, VIT_MAE, SWIN, CONVNEXT),
    )
}


def family_of(config: dict) -> Family:
    """The family that a `config.json` is of.

    Raises:
        ValueError: for a `model_type` that is none of ours.
    """
    if is_timm(config):
        return TIMM
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"`model_type` in {CONFIG} must be one of {', '.join(FAMILIES)}. "
            f"Received: model_type={shown(model_type)}"
        )
    return FAMILIES[model_type]

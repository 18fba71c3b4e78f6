"""Every family of checkpoints: by transformers' `model_type`, or by a library."""

from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.families.bert import BERT
from keras_attn.models.checkpoints.families.clip import HF_CLIP, SIGLIP
from keras_attn.models.checkpoints.families.convnext import CONVNEXT
from keras_attn.models.checkpoints.families.dall_e import DALL_E
from keras_attn.models.checkpoints.families.deit import DEIT
from keras_attn.models.checkpoints.families.distilbert import DISTILBERT
from keras_attn.models.checkpoints.families.gpt import GPT2, OPENAI_GPT
from keras_attn.models.checkpoints.families.open_clip import OPEN_CLIP
from keras_attn.models.checkpoints.families.resnet import RESNET
from keras_attn.models.checkpoints.families.roberta import ROBERTA
from keras_attn.models.checkpoints.families.segmentation_models_pytorch import (
    SMP_UNET,
    is_smp,
)
from keras_attn.models.checkpoints.families.swin import SWIN
from keras_attn.models.checkpoints.families.timm import TIMM, get_timm_family, is_timm
from keras_attn.models.checkpoints.families.torchvision import (
    TORCHVISION,
    get_torchvision_family,
)
from keras_attn.models.checkpoints.families.vilbert import (
    FROM_BERT,
    VILBERT,
    is_vilbert,
)
from keras_attn.models.checkpoints.families.vision_encoder_decoder import (
    VISION_ENCODER_DECODER,
)
from keras_attn.models.checkpoints.families.vit import VIT
from keras_attn.models.checkpoints.families.vit_mae import VIT_MAE
from keras_attn.models.checkpoints.families.vln_bert import FROM_VILBERT, VLN_BERT
from keras_attn.models.checkpoints.families.xlm import XLM
from keras_attn.models.checkpoints.families.xlnet import XLNET
from keras_attn.models.checkpoints.mapping import Family

# By the `library` in `config.json`, which timm's lack.
LIBRARIES: dict[str, tuple[Family, ...]] = {
    "torchvision": TORCHVISION,
    "segmentation_models_pytorch": (SMP_UNET,),
    "dall_e": (DALL_E,),
}

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *(BERT, DISTILBERT, ROBERTA, XLNET, XLM, OPENAI_GPT, GPT2),
        *(VIT, DEIT, VIT_MAE, SWIN, CONVNEXT, RESNET),
        VISION_ENCODER_DECODER,
        *(HF_CLIP, SIGLIP),
        *(VILBERT, VLN_BERT),
    )
}

# A model is written by the first family of its library that has it.
WRITTEN: dict[str, tuple[Family, ...]] = {
    "transformers": tuple(FAMILIES.values()),
    **LIBRARIES,
    "timm": TIMM,
    "open_clip": (OPEN_CLIP,),
}
# By the first of these if no library is named. A ResNet is written as torchvision's.
WRITTEN_BY_DEFAULT = tuple(
    family
    for families in WRITTEN.values()
    for family in families
    if family is not RESNET
)


def get_family(config: Config, task: str | None = None) -> Family:
    """The family that a `config.json` belongs to.

    Args:
        config: The fields of the file.
        task: The task to read it as: some families read a part of their weights from
            the checkpoints of another.

    Raises:
        ValueError: If the `library`, `model_type` or `architecture` is not supported.
    """
    if config.file == OPEN_CLIP.files.config:
        return OPEN_CLIP
    if is_smp(config):
        return SMP_UNET
    library = config.get("library", "timm")
    if library not in ("timm", *LIBRARIES):
        known = f"one of timm, {', '.join(LIBRARIES)}, or missing for transformers"
        raise config.error("library", known, library)
    if library == "torchvision":
        return get_torchvision_family(config)
    if library == "dall_e":
        return DALL_E
    if is_timm(config):
        return get_timm_family(config)
    if is_vilbert(config):
        family = VILBERT
    else:
        family = config.get_choice("model_type", FAMILIES)
    for start, other in ((BERT, FROM_BERT), (VILBERT, FROM_VILBERT)):
        if family is start and task in other.tasks:
            return other
    return family

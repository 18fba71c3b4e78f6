"""Every model type that checkpoints are read and written for."""

from keras_attn.models.checkpoints.bert import BERT, ROBERTA
from keras_attn.models.checkpoints.convnext import CONVNEXT
from keras_attn.models.checkpoints.gpt import GPT2, OPENAI_GPT
from keras_attn.models.checkpoints.mapping import Family
from keras_attn.models.checkpoints.swin import SWIN
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

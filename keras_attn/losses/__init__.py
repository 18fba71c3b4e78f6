"""Losses, as classes for `compile` and as functions of tensors."""

from keras_attn.losses.adversarial import hinge_discriminator_loss, hinge_generator_loss
from keras_attn.losses.choices import ChoiceCrossEntropy
from keras_attn.losses.contrastive import clip_loss, siglip_loss
from keras_attn.losses.cross_entropy import SmoothedCrossEntropy
from keras_attn.losses.logit_laplace import logit_laplace_loss
from keras_attn.losses.masked_patches import MaskedPatchLoss
from keras_attn.losses.masked_regions import MaskedRegionLoss
from keras_attn.losses.policy_gradients import (
    PolicyLoss,
    ValueLoss,
    grpo_loss,
    ppo_policy_loss,
    ppo_value_loss,
    rloo_loss,
)
from keras_attn.losses.preferences import RankingLoss, dpo_loss, ranking_loss
from keras_attn.losses.referring import ReferringCrossEntropy
from keras_attn.losses.segmentation import SegmentationCrossEntropy, border_weights
from keras_attn.losses.soft_answers import SoftAnswerCrossEntropy

__all__ = [
    "ChoiceCrossEntropy",
    "MaskedPatchLoss",
    "MaskedRegionLoss",
    "PolicyLoss",
    "RankingLoss",
    "ReferringCrossEntropy",
    "SegmentationCrossEntropy",
    "SmoothedCrossEntropy",
    "SoftAnswerCrossEntropy",
    "ValueLoss",
    "border_weights",
    "clip_loss",
    "dpo_loss",
    "grpo_loss",
    "hinge_discriminator_loss",
    "hinge_generator_loss",
    "logit_laplace_loss",
    "ppo_policy_loss",
    "ppo_value_loss",
    "ranking_loss",
    "rloo_loss",
    "siglip_loss",
]


def __dir__():
    return __all__

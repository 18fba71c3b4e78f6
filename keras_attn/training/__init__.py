"""Training: objectives, losses, metrics, schedules, an optimizer, backups, runs.

The pipelines of `data` and the training loop of `translator` can also be imported from
here.
"""

from typing import TYPE_CHECKING

from keras_attn.data.images.augmentation import augment_batches, three_augment_dataset
from keras_attn.data.images.captions import caption_dataset
from keras_attn.data.pipelines.box_checks import check_boxes
from keras_attn.data.pipelines.label_checks import check_labels
from keras_attn.data.text.causal_lm import causal_lm_dataset, pack_documents
from keras_attn.data.text.completions import completion_dataset
from keras_attn.data.text.next_sentence import (
    next_sentence_dataset,
    next_sentence_pairs,
)
from keras_attn.data.text.preferences import preference_dataset, ranking_dataset
from keras_attn.data.text.prompts import prompt_dataset
from keras_attn.data.text.translation_lm import (
    language_probabilities,
    sample_languages,
    translation_lm_dataset,
)
from keras_attn.layers.adaptation.quantization import (
    QuantizationReport,
    dequantize,
    quantize,
)
from keras_attn.layers.adaptation.switching import adapters_off, set_adapters
from keras_attn.training.backup import BackupAndResume
from keras_attn.training.feedback.advantages import (
    generalized_advantages,
    grpo_advantages,
    rloo_advantages,
    sequence_rewards,
    token_rewards,
    whiten,
)
from keras_attn.training.feedback.completions import (
    Truncated,
    penalize_missing_end,
    truncate_completions,
)
from keras_attn.training.feedback.deep_q import DeepQ, td_targets
from keras_attn.training.feedback.dpo import DPO
from keras_attn.training.feedback.episodes import (
    GreedyPolicy,
    PlayEpisodes,
    play_episodes,
)
from keras_attn.training.feedback.group_trainers import GRPO, RLOO
from keras_attn.training.feedback.kl_weights import AdaptiveKL, FixedKL
from keras_attn.training.feedback.policy_losses import (
    PolicyLoss,
    ValueLoss,
    grpo_loss,
    ppo_policy_loss,
    ppo_value_loss,
    rloo_loss,
)
from keras_attn.training.feedback.policy_trainer import Rollout
from keras_attn.training.feedback.ppo import PPO
from keras_attn.training.feedback.sample_texts import SampleTexts
from keras_attn.training.feedback.sampling import Completions, CompletionSampling
from keras_attn.training.feedback.token_probabilities import (
    token_entropies,
    token_kl,
    token_log_probabilities,
)
from keras_attn.training.lora import LoRAReport, enable_lora, merge_lora
from keras_attn.training.losses.adversarial import (
    AdversarialTrainer,
    hinge_discriminator_loss,
    hinge_generator_loss,
)
from keras_attn.training.losses.choices import ChoiceAccuracy, ChoiceCrossEntropy
from keras_attn.training.losses.contrastive import (
    clip_loss,
    retrieval_hits,
    siglip_loss,
)
from keras_attn.training.losses.cross_entropy import SmoothedCrossEntropy
from keras_attn.training.losses.logit_laplace import logit_laplace_loss
from keras_attn.training.losses.masked_patches import MaskedPatchLoss
from keras_attn.training.losses.masked_regions import MaskedRegionLoss
from keras_attn.training.losses.preferences import (
    RankingAccuracy,
    RankingLoss,
    dpo_loss,
    ranking_loss,
)
from keras_attn.training.losses.referring import (
    ReferringAccuracy,
    ReferringCrossEntropy,
)
from keras_attn.training.losses.segmentation import (
    SegmentationCrossEntropy,
    border_weights,
)
from keras_attn.training.losses.soft_answers import (
    SoftAnswerCrossEntropy,
    VQAAccuracy,
    vqa_accuracy,
)
from keras_attn.training.masking.masked_lm import MaskedLMMasking
from keras_attn.training.masking.masked_pairs import mask_pairs
from keras_attn.training.masking.permutation_lm import PermutationLMMasking
from keras_attn.training.masking.random_masking import mask_batches
from keras_attn.training.optimizers import AdamW, layerwise_rates
from keras_attn.training.schedules import (
    CosineWarmup,
    InverseSquareRootSchedule,
    LinearWarmup,
)
from keras_attn.training.scores.attention_inside import (
    AttentionInside,
    attention_inside,
    named_objects,
    word_objects,
)
from keras_attn.training.scores.classes import MatthewsCorrelation, SparseF1Score
from keras_attn.training.scores.correlation import (
    PearsonCorrelation,
    SpearmanCorrelation,
)
from keras_attn.training.scores.detection import (
    DetectionScoreLogger,
    DetectionScores,
)
from keras_attn.training.scores.glue import GlueScores, evaluate_glue, glue_metrics
from keras_attn.training.scores.navigation import navigation_scores
from keras_attn.training.scores.perplexity import Perplexity
from keras_attn.training.scores.segmentation import (
    SegmentationScores,
    foreground_rand_scores,
)
from keras_attn.training.scores.translation import bleu, exact_match

if TYPE_CHECKING:
    from keras_attn.training.feedback.reward_models import (
        as_reward_model,
        normalize_scores,
    )
    from keras_attn.translator import TranslationScore, fit_translator

__all__ = [
    "AdamW",
    "AdaptiveKL",
    "AdversarialTrainer",
    "AttentionInside",
    "BackupAndResume",
    "ChoiceAccuracy",
    "ChoiceCrossEntropy",
    "CompletionSampling",
    "Completions",
    "CosineWarmup",
    "DPO",
    "DeepQ",
    "DetectionScoreLogger",
    "DetectionScores",
    "FixedKL",
    "GRPO",
    "GlueScores",
    "GreedyPolicy",
    "InverseSquareRootSchedule",
    "LinearWarmup",
    "LoRAReport",
    "MaskedLMMasking",
    "MaskedPatchLoss",
    "MaskedRegionLoss",
    "MatthewsCorrelation",
    "PPO",
    "PearsonCorrelation",
    "PermutationLMMasking",
    "Perplexity",
    "PlayEpisodes",
    "PolicyLoss",
    "QuantizationReport",
    "RLOO",
    "RankingAccuracy",
    "RankingLoss",
    "ReferringAccuracy",
    "ReferringCrossEntropy",
    "Rollout",
    "SampleTexts",
    "SegmentationCrossEntropy",
    "SegmentationScores",
    "SmoothedCrossEntropy",
    "SoftAnswerCrossEntropy",
    "SparseF1Score",
    "SpearmanCorrelation",
    "TranslationScore",
    "Truncated",
    "VQAAccuracy",
    "ValueLoss",
    "adapters_off",
    "as_reward_model",
    "attention_inside",
    "augment_batches",
    "bleu",
    "border_weights",
    "caption_dataset",
    "causal_lm_dataset",
    "check_boxes",
    "check_labels",
    "clip_loss",
    "completion_dataset",
    "dequantize",
    "dpo_loss",
    "enable_lora",
    "evaluate_glue",
    "exact_match",
    "fit_translator",
    "foreground_rand_scores",
    "generalized_advantages",
    "glue_metrics",
    "grpo_advantages",
    "grpo_loss",
    "hinge_discriminator_loss",
    "hinge_generator_loss",
    "language_probabilities",
    "layerwise_rates",
    "logit_laplace_loss",
    "mask_batches",
    "mask_pairs",
    "merge_lora",
    "named_objects",
    "navigation_scores",
    "next_sentence_dataset",
    "next_sentence_pairs",
    "normalize_scores",
    "pack_documents",
    "penalize_missing_end",
    "play_episodes",
    "ppo_policy_loss",
    "ppo_value_loss",
    "preference_dataset",
    "prompt_dataset",
    "quantize",
    "ranking_dataset",
    "ranking_loss",
    "retrieval_hits",
    "rloo_advantages",
    "rloo_loss",
    "sample_languages",
    "sequence_rewards",
    "set_adapters",
    "siglip_loss",
    "td_targets",
    "three_augment_dataset",
    "token_entropies",
    "token_kl",
    "token_log_probabilities",
    "token_rewards",
    "translation_lm_dataset",
    "truncate_completions",
    "vqa_accuracy",
    "whiten",
    "word_objects",
]


def __getattr__(name):
    # A translator is a model, and detectors import the losses of this package.
    if name in ("TranslationScore", "fit_translator"):
        from keras_attn import translator

        return getattr(translator, name)
    if name in ("as_reward_model", "normalize_scores"):
        from keras_attn.training.feedback import reward_models

        return getattr(reward_models, name)
    raise AttributeError(f"module 'keras_attn.training' has no attribute {name!r}")

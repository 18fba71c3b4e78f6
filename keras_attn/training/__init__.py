"""Training: objectives, trainers, schedules, an optimizer, backups, adapters."""

from keras_attn.layers.adaptation.lora import LoRAReport, enable_lora, merge_lora
from keras_attn.layers.adaptation.quantization import (
    QuantizationReport,
    dequantize,
    quantize,
)
from keras_attn.layers.adaptation.switching import adapters_off, set_adapters
from keras_attn.training.adversarial import AdversarialTrainer
from keras_attn.training.backup import BackupAndResume
from keras_attn.training.feedback.completions import (
    Completions,
    CompletionSampling,
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
from keras_attn.training.feedback.group_trainers import (
    GRPO,
    RLOO,
    grpo_advantages,
    rloo_advantages,
    sequence_rewards,
)
from keras_attn.training.feedback.kl_weights import AdaptiveKL, FixedKL
from keras_attn.training.feedback.policy_trainer import Rollout
from keras_attn.training.feedback.ppo import (
    PPO,
    generalized_advantages,
    token_rewards,
    whiten,
)
from keras_attn.training.feedback.sample_texts import SampleTexts
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
from keras_attn.training.stopwatch import Stopwatch

__all__ = [
    "AdamW",
    "AdaptiveKL",
    "AdversarialTrainer",
    "BackupAndResume",
    "CompletionSampling",
    "Completions",
    "CosineWarmup",
    "DPO",
    "DeepQ",
    "FixedKL",
    "GRPO",
    "GreedyPolicy",
    "InverseSquareRootSchedule",
    "LinearWarmup",
    "LoRAReport",
    "MaskedLMMasking",
    "PPO",
    "PermutationLMMasking",
    "PlayEpisodes",
    "QuantizationReport",
    "RLOO",
    "Rollout",
    "SampleTexts",
    "Stopwatch",
    "Truncated",
    "adapters_off",
    "dequantize",
    "enable_lora",
    "generalized_advantages",
    "grpo_advantages",
    "layerwise_rates",
    "mask_batches",
    "mask_pairs",
    "merge_lora",
    "penalize_missing_end",
    "play_episodes",
    "quantize",
    "rloo_advantages",
    "sequence_rewards",
    "set_adapters",
    "td_targets",
    "token_rewards",
    "truncate_completions",
    "whiten",
]


def __dir__():
    return __all__

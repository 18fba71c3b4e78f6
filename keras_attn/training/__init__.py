"""Training: objectives, losses, metrics, schedules, an optimizer, backups, runs."""

from keras_attn.training.adversarial import (
    AdversarialTrainer,
    hinge_discriminator_loss,
    hinge_generator_loss,
)
from keras_attn.training.attention_inside import (
    AttentionInside,
    attention_inside,
    named_objects,
    word_objects,
)
from keras_attn.training.augmentation import augment_batches, three_augment_dataset
from keras_attn.training.backup import BackupAndResume
from keras_attn.training.box_checks import check_boxes
from keras_attn.training.captioning import caption_dataset
from keras_attn.training.causal_lm import causal_lm_dataset, pack_documents
from keras_attn.training.deep_q import DeepQ, td_targets
from keras_attn.training.detection_scores import (
    DetectionScoreLogger,
    DetectionScores,
)
from keras_attn.training.episodes import GreedyPolicy, PlayEpisodes, play_episodes
from keras_attn.training.label_checks import check_labels
from keras_attn.training.losses import SmoothedCrossEntropy
from keras_attn.training.masked_lm import MaskedLMMasking
from keras_attn.training.masked_patches import MaskedPatchLoss
from keras_attn.training.metrics import Perplexity
from keras_attn.training.navigation_scores import navigation_scores
from keras_attn.training.next_sentence import next_sentence_dataset, next_sentence_pairs
from keras_attn.training.optimizers import AdamW, layerwise_rates
from keras_attn.training.permutation_lm import PermutationLMMasking
from keras_attn.training.random_masking import mask_batches
from keras_attn.training.schedules import (
    CosineWarmup,
    InverseSquareRootSchedule,
    LinearWarmup,
)
from keras_attn.training.scores import bleu, exact_match
from keras_attn.training.segmentation import (
    SegmentationCrossEntropy,
    border_weights,
)
from keras_attn.training.segmentation_scores import (
    SegmentationScores,
    foreground_rand_scores,
)
from keras_attn.training.soft_answers import (
    SoftAnswerCrossEntropy,
    VQAAccuracy,
    vqa_accuracy,
)
from keras_attn.training.translation import TranslationScore, fit_translator
from keras_attn.training.translation_lm import (
    language_probabilities,
    sample_languages,
    translation_lm_dataset,
)

__all__ = [
    "AdamW",
    "AdversarialTrainer",
    "AttentionInside",
    "BackupAndResume",
    "CosineWarmup",
    "DeepQ",
    "DetectionScoreLogger",
    "DetectionScores",
    "GreedyPolicy",
    "InverseSquareRootSchedule",
    "LinearWarmup",
    "MaskedLMMasking",
    "MaskedPatchLoss",
    "PermutationLMMasking",
    "Perplexity",
    "PlayEpisodes",
    "SegmentationCrossEntropy",
    "SegmentationScores",
    "SmoothedCrossEntropy",
    "SoftAnswerCrossEntropy",
    "TranslationScore",
    "VQAAccuracy",
    "attention_inside",
    "augment_batches",
    "bleu",
    "border_weights",
    "caption_dataset",
    "causal_lm_dataset",
    "check_boxes",
    "check_labels",
    "exact_match",
    "fit_translator",
    "foreground_rand_scores",
    "hinge_discriminator_loss",
    "hinge_generator_loss",
    "language_probabilities",
    "layerwise_rates",
    "mask_batches",
    "named_objects",
    "navigation_scores",
    "next_sentence_dataset",
    "next_sentence_pairs",
    "pack_documents",
    "play_episodes",
    "sample_languages",
    "td_targets",
    "three_augment_dataset",
    "translation_lm_dataset",
    "vqa_accuracy",
    "word_objects",
]

"""Metrics for `compile`, and scores of whole data sets."""

from keras_attn.losses.contrastive import retrieval_hits
from keras_attn.metrics.answers import VQAAccuracy, vqa_accuracy
from keras_attn.metrics.attention_inside import (
    AttentionInside,
    attention_inside,
    named_objects,
    word_objects,
)
from keras_attn.metrics.choices import ChoiceAccuracy
from keras_attn.metrics.classes import MatthewsCorrelation, SparseF1Score
from keras_attn.metrics.correlation import PearsonCorrelation, SpearmanCorrelation
from keras_attn.metrics.detection import (
    DetectionScoreLogger,
    DetectionScores,
    count_detection_errors,
)
from keras_attn.metrics.glue import GlueScores, evaluate_glue, glue_metrics
from keras_attn.metrics.navigation import navigation_scores
from keras_attn.metrics.perplexity import Perplexity
from keras_attn.metrics.rankings import RankingAccuracy
from keras_attn.metrics.referring import ReferringAccuracy
from keras_attn.metrics.segmentation import SegmentationScores, foreground_rand_scores
from keras_attn.metrics.translation import bleu, exact_match

__all__ = [
    "AttentionInside",
    "ChoiceAccuracy",
    "DetectionScoreLogger",
    "DetectionScores",
    "GlueScores",
    "MatthewsCorrelation",
    "PearsonCorrelation",
    "Perplexity",
    "RankingAccuracy",
    "ReferringAccuracy",
    "SegmentationScores",
    "SparseF1Score",
    "SpearmanCorrelation",
    "VQAAccuracy",
    "attention_inside",
    "bleu",
    "count_detection_errors",
    "evaluate_glue",
    "exact_match",
    "foreground_rand_scores",
    "glue_metrics",
    "named_objects",
    "navigation_scores",
    "retrieval_hits",
    "vqa_accuracy",
    "word_objects",
]


def __dir__():
    return __all__

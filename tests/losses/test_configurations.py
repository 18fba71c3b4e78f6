"""Every loss and metric is created again by its configuration, with every option."""

import inspect

import keras
import pytest

from keras_attn import losses, metrics

# With no option at its default.
MADE = [
    losses.ChoiceCrossEntropy(3),
    losses.MaskedPatchLoss((7, 5), normalize=False, epsilon=1e-3),
    losses.MaskedRegionLoss(),
    losses.RankingLoss(3, margin=0.5, center_weight=0.01),
    losses.ReferringCrossEntropy(0.3),
    losses.SegmentationCrossEntropy(3),
    losses.SmoothedCrossEntropy(0.1, pad_token_id=2, from_logits=False),
    losses.SoftAnswerCrossEntropy(),
    metrics.AttentionInside((3, 5), max_area=0.5),
    metrics.ChoiceAccuracy(3),
    metrics.MatthewsCorrelation(5),
    metrics.PearsonCorrelation(),
    metrics.Perplexity(from_logits=False, pad_token_id=3),
    metrics.RankingAccuracy(3),
    metrics.ReferringAccuracy(0.3),
    metrics.SegmentationScores(2, ["a", "b"], ignore_label=11),
    metrics.SparseF1Score(3, 5),
    metrics.SpearmanCorrelation(97),
    metrics.VQAAccuracy(),
]
KINDS = (keras.losses.Loss, keras.metrics.Metric)


def test_every_loss_and_metric_is_here():
    exported = {getattr(m, name) for m in (losses, metrics) for name in m.__all__}
    classes = {each for each in exported if inspect.isclass(each)}
    assert {each for each in classes if issubclass(each, KINDS)} == set(map(type, MADE))


@pytest.mark.parametrize("made", MADE, ids=lambda made: type(made).__name__)
def test_a_configuration_creates_the_same(made):
    options = {"name": "other"}
    if isinstance(made, keras.losses.Loss):
        options["reduction"] = "sum"
    config = {**made.get_config(), **options}
    arguments = set(inspect.signature(type(made)).parameters)
    assert arguments - {"args", "kwargs"} <= set(config)
    serialized = keras.saving.serialize_keras_object(type(made).from_config(config))
    again = keras.saving.deserialize_keras_object(serialized)
    assert type(again) is type(made) and again.get_config() == config
    for name, value in config.items():
        assert getattr(again, name, value) == value

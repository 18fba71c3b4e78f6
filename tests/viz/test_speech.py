"""The picture of a speller's attention, and its callback."""

import keras
import numpy as np
import pytest
from event_files import steps_of
from viz.figures import panels, random_attention, tick_labels

from keras_attn import models
from keras_attn.viz import plot_speech_attention
from keras_attn.viz.callbacks import SpeechAttentionMaps

FEATURES = np.random.default_rng(1).normal(size=(29, 11)).astype("float32")
WORD = list("seven") + ["<end>"]


def test_characters_are_drawn_below_the_spectrogram():
    scores = random_attention(7, 5)
    figure = plot_speech_attention(
        scores, FEATURES, WORD, reduction=8, hop_seconds=0.02, title="seven"
    )
    above, below, *_ = panels(figure)
    np.testing.assert_array_equal(above.images[0].get_array(), FEATURES.T)
    # 29 frames are four places; the seventh row has no label.
    drawn = np.asarray(below.images[0].get_array())
    np.testing.assert_allclose(drawn, scores[:6, :4])
    assert below.images[0].get_clim() == (0, 1)
    assert tick_labels(below.yaxis) == WORD
    # Both panels have the same axis of time: 29 frames every 0.02 s.
    assert above.get_xlim() == below.get_xlim() == (0, pytest.approx(0.58))
    assert below.images[0].get_extent() == [0, pytest.approx(0.64), 6, 0]


def test_heads_are_averaged():
    scores = random_attention(3, 6, 4)
    figure = plot_speech_attention(scores, FEATURES, WORD)
    drawn = np.asarray(panels(figure)[1].images[0].get_array())
    np.testing.assert_allclose(drawn, scores.mean(0), atol=1e-6)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"features": FEATURES[None]}, "`features` must be finite frames"),
        ({"features": FEATURES * np.nan}, "`features` must be finite frames"),
        ({"features": np.zeros((33, 11))}, "at most 32 frames, .*Received: 33 frames"),
        ({"target_tokens": WORD * 2}, "`target_tokens` must be a list of 1 to 6"),
        ({"scores": np.full((6, 4), 2.0)}, "`scores` must be probabilities"),
        ({"reduction": 0}, "`reduction` must be a positive integer"),
        ({"hop_seconds": 0}, "`hop_seconds` must be a number above 0"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    arguments = {
        "scores": random_attention(6, 4),
        "features": FEATURES,
        "target_tokens": WORD,
    }
    with pytest.raises(ValueError, match=message):
        plot_speech_attention(**{**arguments, **options})


def small_model():
    return models.build_listen_attend_spell(
        vocabulary_size=7,
        num_mels=11,
        listener_dim=3,
        num_pyramid_layers=1,
        embedding_dim=3,
        hidden_dim=3,
        num_layers=1,
        attention_dim=3,
        readout_dim=3,
    )


INPUTS = {
    "features": np.random.default_rng(1).normal(size=(3, 5, 11)).astype("float32"),
    "padding_mask": np.arange(5) < np.array([[5], [3], [4]]),
    "decoder_token_ids": np.ones((3, 4), "int32"),
}
TOKENS = [list("one"), list("two"), ["1"]]


def test_speech_is_written_to_tensorboard(tmp_path):
    model = small_model()
    maps = SpeechAttentionMaps(
        tmp_path, INPUTS, TOKENS, max_examples=2, every=2, reduction=2
    )
    assert [len(frames) for frames in maps.frames] == [5, 3]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=True)
    labels = np.zeros((3, 4), "int32")
    model.fit(INPUTS, labels, epochs=3, verbose=0, callbacks=[maps])
    assert steps_of(tmp_path) == {
        "attention/speller/0": [0, 2],
        "attention/speller/1": [0, 2],
    }


def test_features_of_waveforms_are_given(tmp_path):
    waveforms = {"waveform": np.ones((1, 9)), "padding_mask": np.ones((1, 9))}
    maps = SpeechAttentionMaps(
        tmp_path, waveforms, [["1"]], features=FEATURES[None], frame_lengths=[7]
    )
    assert maps.frames[0].shape == (7, 11)
    match = r"`features`, .*one entry .*named \['waveform', 'padding_mask'\]"
    with pytest.raises(ValueError, match=match):
        SpeechAttentionMaps(tmp_path, waveforms, [["1"]])
    with pytest.raises(ValueError, match="2 target_tokens"):
        SpeechAttentionMaps(tmp_path, INPUTS, TOKENS[:2])

import threading

import keras
import pytest

from keras_attn.layers import recorder


def make_layer(name):
    layer = keras.layers.Dense(3, name=name)
    layer.build((2, 5))  # Gives the layer a path.
    return layer


@pytest.fixture
def layer():
    return make_layer("attention")


def test_nothing_is_recorded_by_default():
    assert not recorder.is_recording()
    with recorder.record_attention_scores():
        assert recorder.is_recording()
    assert not recorder.is_recording()


def test_the_keys_are_paths_with_a_number_for_further_calls(layer):
    other = make_layer("other")
    with recorder.record_attention_scores() as scores:
        assert scores == {}
        for which, value in ((layer, 1), (other, 2), (layer, 3), (layer, 4)):
            recorder.record(which, value)
    assert list(scores.items()) == [
        ("attention", 1),
        ("other", 2),
        ("attention:1", 3),
        ("attention:2", 4),
    ]


def test_recorders_nest(layer):
    with recorder.record_attention_scores() as outer:
        recorder.record(layer, 1)
        with recorder.record_attention_scores() as inner:
            recorder.record(layer, 2)
        recorder.record(layer, 3)
    assert inner == {"attention": 2}
    assert outer == {"attention": 1, "attention:1": 3}


def test_an_exception_ends_the_recording():
    with pytest.raises(RuntimeError), recorder.record_attention_scores():
        raise RuntimeError
    assert not recorder.is_recording()


def test_another_thread_is_not_recorded():
    is_recording = []
    with recorder.record_attention_scores():
        thread = threading.Thread(
            target=lambda: is_recording.append(recorder.is_recording())
        )
        thread.start()
        thread.join()
    assert is_recording == [False]

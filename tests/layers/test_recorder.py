import threading

import keras
import pytest

from keras_attn.layers import recorder


def make_layer(name):
    layer = keras.layers.Dense(3, name=name)
    layer.build((2, 5))  # A layer has a path from then on.
    return layer


@pytest.fixture
def layer():
    return make_layer("some_attention")


def test_nobody_is_recording_by_default():
    assert not recorder.is_recording()
    with recorder.record_attention_scores():
        assert recorder.is_recording()
    assert not recorder.is_recording()


def test_scores_are_kept_under_the_path_and_a_second_call_under_another(layer):
    other = make_layer("other")
    with recorder.record_attention_scores() as scores:
        assert scores == {}
        for which, value in ((layer, 1), (other, 2), (layer, 3), (layer, 4)):
            recorder.record(which, value)
    assert list(scores.items()) == [
        ("some_attention", 1),
        ("other", 2),
        ("some_attention:1", 3),
        ("some_attention:2", 4),
    ]


def test_an_inner_recorder_hides_the_outer_one_and_gives_back(layer):
    with recorder.record_attention_scores() as outer:
        recorder.record(layer, 1)
        with recorder.record_attention_scores() as inner:
            recorder.record(layer, 2)
        recorder.record(layer, 3)
    assert inner == {"some_attention": 2}
    assert outer == {"some_attention": 1, "some_attention:1": 3}


def test_an_error_ends_the_recording():
    with pytest.raises(RuntimeError), recorder.record_attention_scores():
        raise RuntimeError
    assert not recorder.is_recording()


def test_another_thread_is_not_recorded():
    seen = []
    with recorder.record_attention_scores():
        thread = threading.Thread(target=lambda: seen.append(recorder.is_recording()))
        thread.start()
        thread.join()
    assert seen == [False]

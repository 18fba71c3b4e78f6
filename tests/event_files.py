"""What a run wrote for TensorBoard."""

import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def events_of(log_dir):
    """Each tag, with the steps and the arrays written under it, in order of time.

    Names of two event files of the same second end in a count that is not padded with
    zeros (9, 10), so the order of the files is not always the order of writing.
    """
    # 0 keeps all events of a tag, not a sample of them.
    found = EventAccumulator(str(log_dir), size_guidance={"tensors": 0})
    found.Reload()
    return {
        tag: [
            (event.step, tf.make_ndarray(event.tensor_proto))
            for event in sorted(found.Tensors(tag), key=lambda event: event.wall_time)
        ]
        for tag in found.Tags()["tensors"]
    }


def steps_of(log_dir):
    """Each tag, with the steps at which something was written under it."""
    return {
        tag: [step for step, _ in events] for tag, events in events_of(log_dir).items()
    }


def pictures_of(log_dir):
    """Each tag of images, with the steps and the PNG files written under it."""
    # An event of an image is its width, its height and its file.
    return {
        tag: [(step, array[2]) for step, array in events]
        for tag, events in events_of(log_dir).items()
    }

"""Calls that must be refused, with their messages."""

import pytest


def refuses(message, call, *arguments, **options):
    """Asserts that a call raises a ValueError whose message matches a pattern."""
    __tracebackhide__ = True
    with pytest.raises(ValueError, match=message):
        call(*arguments, **options)


def named_or_left_out(message, read, *arguments, left_out="left out 1 ", **options):
    """Asserts that a reader names what is bad; returns what it reads without that."""
    __tracebackhide__ = True
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read(*arguments, **options)
    with pytest.warns(UserWarning, match=left_out):
        return read(*arguments, **options, on_error="skip")


def refuses_in_epoch(message, dataset):
    """Asserts that a `tf.data.Dataset` fails where it reads what is bad."""
    import tensorflow as tf

    __tracebackhide__ = True
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(dataset)

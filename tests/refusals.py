"""A call that must be refused, with its message."""

import pytest


def refuses(message, call, *arguments, **options):
    """Asserts that a call raises a ValueError whose message matches a pattern."""
    __tracebackhide__ = True
    with pytest.raises(ValueError, match=message):
        call(*arguments, **options)

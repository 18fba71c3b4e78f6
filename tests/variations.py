"""Cases of a test that CI takes by turns: CONTRIBUTING.md says which."""

import pytest


def in_turn(values, always=1):
    """Values of one parameter; the first run always, and the others are variations.

    Args:
        values: Any number of them, in order of importance.
        always: How many run in every suite.
    """
    return [
        value if number < always else pytest.param(value, marks=pytest.mark.variation)
        for number, value in enumerate(values)
    ]

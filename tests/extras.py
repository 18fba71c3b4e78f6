"""What tests skip if a package is missing that the extra `test` does not install."""

import importlib.util

import pytest


def needs(module, extra):
    """A mark that skips a test, with its reason, where a package is not installed.

    The package is not imported: some take seconds.

    Args:
        module: The name that the package is imported by.
        extra: The extra of keras-attn that installs it.
    """
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None,
        reason=f'needs `{module}`: pip install "keras-attn[{extra}]"',
    )


NEEDS_JAX = needs("jax", "jax")
NEEDS_KERAS_CV = needs("keras_cv", "vision")

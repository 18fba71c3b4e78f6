"""Optional dependencies: the extras of `pip install "keras-attn[...]"`."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def requires_extra(extra: str, feature: str) -> Iterator[None]:
    """Turns a failed import in the block into an error that says what to install.

    Args:
        extra: Name of the extra that installs the package.
        feature: What needs the package; begins the message.

    Raises:
        ImportError: If an import in the block fails.

    Example:
        Needs the extra `export`:

        ```python
        from keras_attn.extras import requires_extra

        with requires_extra("export", "Export to ONNX"):
            import onnx
        ```
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        raise ImportError(
            f"{feature} needs `{package}`, which is not installed: "
            f'pip install "keras-attn[{extra}]"'
        ) from error

"""The one error of an export that went wrong after its arguments were right."""


class ExportError(RuntimeError):
    """An artefact could not be written, does not run, or does not agree with Keras.

    Nothing is left behind when it is raised: what stood at the target still stands.
    """


class RefusedError(ExportError):
    """A converter or runtime cannot take these operators at these shapes.

    Attributes:
        operators: The operators refused, by TensorFlow's name, where known.
        locations: Name scopes of the refused operators in the traced graph.
        signatures: The signatures they are in, where known.
        mend: What may help.
    """

    def __init__(
        self,
        message: str,
        operators: tuple[str, ...] = (),
        locations: tuple[str, ...] = (),
        signatures: tuple[str, ...] = (),
        mend: str = "Build the layer from other operations",
    ):
        super().__init__(message)
        self.operators = operators
        self.locations = locations
        self.signatures = signatures
        self.mend = mend


def missing_extra(package: str, extra: str = "export") -> ImportError:
    """The error of a package that only an extra of keras-attn brings."""
    return ImportError(
        f'`{package}` is not installed: pip install "keras-attn[{extra}]"'
    )

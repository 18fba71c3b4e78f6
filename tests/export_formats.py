"""Every file format that exists, so that a new one is tested like the others."""

import pytest

from keras_attn.export.formats import FORMATS

SUFFIXES = {name: format.suffix for name, format in FORMATS.items()}
# A SavedModel has the operations of Keras; models differ in what becomes of them in the
# other two formats.
OF_MOST_MODELS = [
    pytest.param(suffix, marks=pytest.mark.variation)
    if name == "saved_model"
    else suffix
    for name, suffix in SUFFIXES.items()
]

"""Every file format that exists, so that a new one is tested like the others."""

from keras_attn.export.formats import FORMATS

SUFFIXES = {name: format.suffix for name, format in FORMATS.items()}

"""The `keras-attn` command line: one file per command, assembled in `app.py`.

Importing it imports neither Keras nor TensorFlow; a command does when it runs.
"""

from keras_attn.cli.app import app, main

__all__ = ["app", "main"]

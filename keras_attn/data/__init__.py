"""Tokenizers, tf.data pipelines and data sets."""

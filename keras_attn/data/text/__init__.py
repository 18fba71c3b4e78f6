"""Tokenizers, and pipelines of texts."""

"""Attention layers: one idea a file, on the pure functions of `keras_attn.ops`."""

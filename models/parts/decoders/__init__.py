"""Shared by generative models: their decoders, and step-by-step decoding."""

"""What generative models share: their decoders, and decoding step by step."""

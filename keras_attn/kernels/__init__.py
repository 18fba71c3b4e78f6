"""What one backend runs faster than `keras.ops`, with the same numbers."""

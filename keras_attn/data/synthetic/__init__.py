"""Data that is generated, whose truth is known exactly."""

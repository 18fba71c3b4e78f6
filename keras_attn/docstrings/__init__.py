"""Docstrings that are read and completed; options that are described once."""

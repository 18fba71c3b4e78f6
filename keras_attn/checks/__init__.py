"""Checks of arguments, indices and inputs, with messages that name the value."""

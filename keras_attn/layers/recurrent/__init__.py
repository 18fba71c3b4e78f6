"""Recurrent layers, most of which attend to a memory at every step."""

"""Waveforms."""

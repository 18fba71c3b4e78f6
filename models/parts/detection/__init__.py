"""Shared by two-stage detectors."""

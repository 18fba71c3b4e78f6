"""Metrics and scores."""

"""Objectives that mask tokens and predict them."""

"""Kernels with low-rank updates, kernels of integers, and the layers that have them."""

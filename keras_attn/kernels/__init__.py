"""Kernels: the same numbers as `keras.ops`, computed faster by one backend.

`runtime` says which backend runs and how; every other module is one kernel. A layer
reads as its equation and calls the kernel where `runtime` allows it.
"""

"""See what a model attends to: capture, plots, TensorBoard."""

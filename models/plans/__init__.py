"""What a model needs before it runs: cost, layout on devices, programs for TPUs."""

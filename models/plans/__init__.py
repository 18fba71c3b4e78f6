"""Cost, layout on devices and programs for TPUs of a model, before it runs."""

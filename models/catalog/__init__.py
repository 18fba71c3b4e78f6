"""The catalog of models: variants, cards, and the registry that creates by name."""

"""From a variant's name to its numbers, which the caller may override."""

from keras_attn.checks import check_choice


def resolve(variants: dict[str, dict], variant: str, **overrides) -> dict:
    """The row of `variants` named `variant`, with every override that is not None.

    Raises:
        ValueError: for a variant that is not in the table, naming those that are.
    """
    check_choice("variant", variant, tuple(variants))
    chosen = {name: value for name, value in overrides.items() if value is not None}
    return {**variants[variant], **chosen}

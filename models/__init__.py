"""Model families: one paper, one file, built by plain functions."""

if __name__ != "keras_attn.models":
    raise ImportError(
        "This folder is the source of `keras_attn.models`; import it by that name. "
        f"A second copy (imported here as `{__name__}`) would register every Keras "
        "class twice."
    )

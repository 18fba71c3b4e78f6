"""Ship any Keras model: SavedModel, LiteRT and ONNX, each verified."""

if __name__ != "keras_attn.export":
    raise ImportError(
        "This folder is the source of `keras_attn.export`; import it by that name. "
        f"A second copy (imported here as `{__name__}`) would register every Keras "
        "class twice."
    )

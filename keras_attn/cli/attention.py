"""`keras-attn attention`: what a model attends to, as a plot or an HTML page.

Opening a model: `cli/opened_model.py`; scores: `layers/capture.py`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from keras_attn.cli.opened_model import (
    OpenedModel,
    is_checkpoint,
    is_text_tokenizer,
    load_folder_tokenizer,
    open_model,
)
from keras_attn.cli.options import Model, Panel, Task, TokenizerFolder
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import say

if TYPE_CHECKING:
    import numpy as np

_TEXT, _IMAGE, _DRAWING = Panel("Text"), Panel("Image"), Panel("What is drawn")
_OPTIONS = Panel()


class Example(NamedTuple):
    """One row of inputs and the labels of its tokens."""

    inputs: "dict[str, np.ndarray]"
    source_tokens: list[str]
    target_tokens: list[str] | None = None


def attention(
    model: Model,
    text: Annotated[
        str | None, typer.Argument(help="The text to read or translate; quote it.")
    ] = None,
    text_pair: Annotated[
        str | None,
        _TEXT.option("A second text, for a model of text pairs such as BERT."),
    ] = None,
    translation: Annotated[
        str | None,
        _TEXT.option("The target text of a translator. Default: its own translation."),
    ] = None,
    ids: Annotated[
        str | None,
        _TEXT.option(
            'Token ids instead of a text: "1 2 3". --translation is then ids too.'
        ),
    ] = None,
    tokenizer: TokenizerFolder = None,
    image: Annotated[
        Path | None,
        _IMAGE.file(
            "The image, for an image model. It is resized to the model's input and "
            "normalized by the checkpoint's preprocessor_config.json, or to [-1, 1]."
        ),
    ] = None,
    rollout: Annotated[
        bool,
        _DRAWING.option(
            "One map for all layers and heads, by attention rollout. Not for "
            "windowed models such as Swin.",
            "--rollout",
        ),
    ] = False,
    layer: Annotated[
        list[int] | None,
        _DRAWING.option(
            "A layer, counted from 0; may be given several times. Default: all "
            "for a text, the last for an image.",
            metavar="N",
        ),
    ] = None,
    head: Annotated[
        list[int] | None,
        _DRAWING.option(
            "A head, counted from 0; may be given several times. Default: all.",
            metavar="N",
        ),
    ] = None,
    task: Task = None,
    output: Annotated[
        Path,
        _OPTIONS.option(
            "A plot (.png, .pdf or .svg) or, for a text, a page to explore in a "
            "browser (.html).",
            dir_okay=False,
        ),
    ] = Path("alignment.png"),
) -> None:
    """Draw what a model attends to in a text or an image.

    A text is drawn as a grid of layers and heads with its tokens, an image with a map
    of attention over it. A translator is drawn as the alignment of the text and its
    translation, unless layers, heads or a page are requested.

    Example: keras-attn attention checkpoints/bert "A dog runs." --output dog.html

    Example: keras-attn attention runs/en-de "A dog runs." --output dog.png

    Example: keras-attn attention checkpoints/vit --image dog.jpg --output dog.png

    Example: keras-attn attention model.keras --ids "4 8 15" --layer 0 --head 2
    """
    _check_options(
        {"TEXT": text, "--ids": ids, "--image": image},
        {"--text-pair": text_pair, "--translation": translation},
        rollout and bool(layer or head),
        output,
    )
    with importing_tensorflow():
        from keras_attn import viz

    if text is not None and model.is_file() and tokenizer is None:
        raise ValueError(
            "MODEL has no tokenizer: pass the folder of one as --tokenizer, or token "
            f"ids as --ids. Received: {str(model)!r}"
        )
    opened = open_for_attention(model, task, text, tokenizer)
    if image is not None:
        figure, drawn = _plot_image(opened, image, rollout, layer, head)
        viz.save_figure(figure, output)
    elif ids is not None:
        example = _encode_ids(opened, ids, translation, tokenizer)
        drawn = _draw_heads(opened, example, ids, rollout, layer, head, output)
    elif opened.translator is not None:
        if text_pair is not None or tokenizer is not None:
            raise ValueError(
                "--text-pair and --tokenizer do not apply to the folder of a "
                f"translator. Received: {str(model)!r}"
            )
        text = text or ""
        if translation is None:
            (translation,) = opened.translator.translate([text])
        if rollout or layer or head or is_page(output):
            example = Example(*opened.translator.example(text, translation))
            drawn = _draw_heads(opened, example, text, rollout, layer, head, output)
        else:
            alignment = opened.translator.align(text, translation)
            viz.save_figure(viz.plot_alignment(*alignment, title=text), output)
            drawn = "Alignment"
        say(translation)
    else:
        if translation is not None:
            raise ValueError(
                "--translation requires the folder of a `keras-attn train` run, or "
                f"--ids. Received: {str(model)!r}"
            )
        text = text or ""
        example = encode_text(opened, text, text_pair, tokenizer)
        drawn = _draw_heads(opened, example, text, rollout, layer, head, output)
    say(f"{drawn}: {output}", "dim")


def _check_options(
    inputs: dict[str, Any], targets: dict[str, Any], is_filtered: bool, output: Path
) -> None:
    """Checks that the options fit together: one input, and what belongs to it."""
    given = [name for name, value in inputs.items() if value is not None]
    if len(given) != 1:
        raise typer.BadParameter(
            "give one of TEXT, --ids and --image. "
            f"Received: {' and '.join(given) or 'none of them'}."
        )
    unused = {"TEXT": (), "--ids": ("--text-pair",), "--image": tuple(targets)}
    for name in unused[given[0]]:
        if targets[name] is not None:
            raise typer.BadParameter(f"{name} cannot be combined with {given[0]}.")
    if is_filtered:
        raise typer.BadParameter(
            "--rollout combines all layers and heads; leave out --layer and --head."
        )
    if given == ["--image"] and is_page(output):
        raise typer.BadParameter(
            "--output must end in .png, .pdf or .svg for an image; .html is for texts "
            "only."
        )


def is_page(output: Path) -> bool:
    """Whether a page is asked for, not a figure."""
    return output.suffix.lower() == ".html"


def open_for_attention(
    path: Path, task: str | None, text: str | None, tokenizer: Path | None
) -> OpenedModel:
    """Opens the model; a checkpoint opens by default as an encoder, without a head."""
    if not is_checkpoint(path):
        return open_model(path, task)
    if text is not None:
        load_folder_tokenizer(tokenizer or path)  # Fails sooner than loading the model.
    if task is not None:
        return open_model(path, task)
    try:
        return open_model(path, "encoder")
    except ValueError as error:
        # The family has no encoder of its own.
        if "`task` must be" not in str(error):
            raise
    return open_model(path)


def encode_text(
    opened: OpenedModel, text: str, text_pair: str | None, folder: Path | None
) -> Example:
    """Encodes a text or a pair, by the tokenizer in `folder` or beside the model."""
    tokenizer = load_folder_tokenizer(folder or opened.path)
    if not is_text_tokenizer(tokenizer):
        if text_pair is not None:
            raise ValueError(
                "--text-pair needs a tokenizer with special tokens, such as WordPiece. "
                f"Received: {type(tokenizer).__name__}"
            )
        return _example_of_ids(opened, tokenizer.encode(text), None, tokenizer)
    batch = tokenizer.encode_batch([text], None if text_pair is None else [text_pair])
    ids = batch["token_ids"][0].tolist()
    example = _example_of_ids(opened, ids, None, tokenizer)
    return example._replace(
        inputs={name: batch.get(name, array) for name, array in example.inputs.items()}
    )


def _encode_ids(
    opened: OpenedModel, ids: str, target_ids: str | None, folder: Path | None
) -> Example:
    """Parses ids, labelled by the tokenizer in `folder` or by their numbers."""
    if opened.translator is not None:
        raise ValueError(
            "--ids is for models without a tokenizer; pass a text to the folder of a "
            f"translator. Received: {str(opened.path)!r}"
        )
    tokenizer = load_folder_tokenizer(folder) if folder else None
    targets = None if target_ids is None else _parse_ids("--translation", target_ids)
    return _example_of_ids(opened, _parse_ids("--ids", ids), targets, tokenizer)


def _parse_ids(option: str, text: str) -> list[int]:
    try:
        ids = [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        ids = []
    if not ids or not all(0 <= index < 2**31 for index in ids):
        raise ValueError(
            f'{option} must be non-negative integers, such as "1 2 3". '
            f"Received: {option} {text!r}"
        )
    return ids


def _example_of_ids(
    opened: OpenedModel, ids: list[int], target_ids: list[int] | None, tokenizer: Any
) -> Example:
    """One row of inputs for a model of tokens, with zeros for segments and the like."""
    import numpy as np

    names = opened.input_names
    row = np.array([ids], "int32").reshape(1, -1)
    inputs = {
        "token_ids": row,
        "padding_mask": np.ones_like(row, bool),
        "segment_ids": np.zeros_like(row),
        "language_ids": np.zeros_like(row),
        "masked_positions": np.zeros((1, 1), "int32"),
    }
    if target_ids is not None:
        inputs["decoder_token_ids"] = np.array([target_ids], "int32")
    if "token_ids" not in names:
        raise ValueError(
            "MODEL must be a text model for TEXT or --ids; use --image for an image "
            f"model. Received: {str(opened.path)!r}"
        )
    if "decoder_token_ids" in names and target_ids is None:
        raise ValueError(
            "--ids and --translation must both be given as token ids for an "
            f"encoder-decoder. Received: {str(opened.path)!r}"
        )
    if not names <= set(inputs) or (target_ids and "decoder_token_ids" not in names):
        missing = names.symmetric_difference(inputs) & (names | {"decoder_token_ids"})
        raise ValueError(
            "MODEL must take only token ids, masks and segments. Received: "
            f"{str(opened.path)!r} and the input {', '.join(sorted(missing))}"
        )
    if not row.size:
        raise ValueError("TEXT must have at least one token. Received: ''")
    labels = [
        [str(index) for index in each] if tokenizer is None else tokenizer.tokens(each)
        for each in (ids, target_ids or [])
    ]
    return Example(
        {name: inputs[name] for name in names},
        labels[0],
        labels[1] if target_ids is not None else None,
    )


def _read_image(
    file: Path, shape: tuple[int | None, ...], opened: OpenedModel
) -> "tuple[np.ndarray, np.ndarray]":
    """The image as the model sees it, from 0 to 1, and the input, both (H, W, C).

    By the preprocessing of the model; without one, images are resized to its input and
    normalized to [-1, 1].
    """
    import numpy as np
    from PIL import Image

    from keras_attn.data.images import image_files
    from keras_attn.models import image_preprocessing

    height, width, channels = shape
    if channels not in (1, 3):
        raise ValueError(
            "MODEL must take images of 1 or 3 channels for --image. "
            f"Received: {channels} channels"
        )
    try:
        image = image_files.read_image(file, channels)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"--image must be an image file, such as .png or .jpg: {error}"
        ) from error
    fields = getattr(opened.model, "preprocessing", None)
    if fields is not None:
        layer = image_preprocessing(fields)
        prepared = np.asarray(layer(image[None]))[0]
        sides = zip((height, width), prepared.shape, strict=False)
        if any(side not in (None, found) for side, found in sides):
            raise ValueError(
                "MODEL must have a preprocessing that gives images of its input's size "
                f"for --image. Received: {prepared.shape[:2]}, for {(height, width)}"
            )
        shares = prepared * np.asarray(layer.std) + np.asarray(layer.mean)
        return np.clip(shares / (layer.scale * 255), 0, 1), prepared
    if height and width:
        picture = Image.fromarray(image.squeeze(-1) if channels == 1 else image)
        image = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))
        image = image.reshape(height, width, channels)
    shares = (image / 255).astype("float32")
    return shares, (shares - 0.5) / 0.5


def _draw_heads(
    opened: OpenedModel,
    example: Example,
    title: str,
    rollout: bool,
    layers: list[int] | None,
    heads: list[int] | None,
    output: Path,
) -> str:
    """Writes the plot or the page; returns what is on it."""
    from keras_attn import viz
    from keras_attn.files.writing import write_atomically

    scores = viz.capture_attention(opened.model, example.inputs)
    if rollout:
        if example.target_tokens is not None:
            raise ValueError(
                "--rollout needs a model with a single sequence, not an "
                f"encoder-decoder. Received: {str(opened.path)!r}"
            )
        scores = {"rollout": viz.attention_rollout(scores)[:, None]}
    _check_numbers("--layer", layers, len(scores))
    paths = [path for index, path in enumerate(scores) if not layers or index in layers]
    # Layers may differ in their number of heads.
    _check_numbers("--head", heads, min(scores[path].shape[1] for path in paths))
    options = {"layers": layers or None, "heads": heads or None, "title": title}
    tokens = example.source_tokens, example.target_tokens
    if is_page(output):
        page = viz.attention_page(scores, *tokens, **options)
        write_atomically(output, page.encode())
    else:
        viz.save_figure(viz.plot_attention_heads(scores, *tokens, **options), output)
    if rollout:
        return "Attention rollout"
    if len(paths) == 1:
        return f"Attention of {paths[0]}"
    return f"Attention of {len(paths)} layers, {paths[0]} to {paths[-1]}"


def _check_numbers(option: str, numbers: list[int] | None, count: int) -> None:
    for number in numbers or ():
        if not 0 <= number < count:
            raise ValueError(
                f"{option} must be from 0 to {count - 1} for this model. "
                f"Received: {option} {number}"
            )


def _plot_image(
    opened: OpenedModel,
    file: Path,
    rollout: bool,
    layers: list[int] | None,
    heads: list[int] | None,
) -> tuple[Any, str]:
    """The figure of the maps over the image, and what is on it."""
    import numpy as np

    from keras_attn import viz

    shape = getattr(opened.inputs, "shape", ())
    if len(shape) != 4:
        raise ValueError(
            "MODEL must be an image model for --image; pass TEXT to a text model. "
            f"Received: {str(opened.path)!r}"
        )
    pixels, normalised = _read_image(file, shape[1:], opened)
    if rollout:
        try:
            maps = viz.image_rollout(opened.model, normalised[None])
        except ValueError as error:
            if "for a rollout" not in str(error):
                raise
            raise ValueError(
                "--rollout needs a model whose layers all attend over the whole "
                "image, such as a ViT; leave it out for windowed models such as Swin. "
                f"Received: {str(opened.path)!r}"
            ) from error
        figure = viz.plot_image_attention(pixels, maps[0], labels=["rollout"])
        return figure, "Attention rollout"
    maps = viz.image_attention(opened.model, normalised[None])
    paths = list(maps)
    _check_numbers("--layer", layers, len(paths))
    chosen = [paths[index] for index in sorted(set(layers or [len(paths) - 1]))]
    panels, labels = [], []
    for path in chosen:
        count = maps[path].shape[1]
        _check_numbers("--head", heads, count)
        for head in sorted(set(heads or range(count))):
            panels.append(_resize_map(maps[path][0, head], maps[chosen[0]].shape[2:]))
            prefix = f"layer {paths.index(path)}, " * (len(chosen) > 1)
            labels.append(f"{prefix}head {head}")
    figure = viz.plot_image_attention(
        pixels,
        np.stack(panels),
        labels=labels,
        title=chosen[0] if len(chosen) == 1 else None,
    )
    return figure, f"Attention of {', '.join(chosen)}"


def _resize_map(heat: "np.ndarray", shape: tuple[int, ...]) -> "np.ndarray":
    """Repeats the values of a coarser map from a later stage, up to a given shape."""
    import numpy as np

    rows, columns = (
        np.arange(size) * old // size
        for size, old in zip(shape, heat.shape, strict=True)
    )
    return heat[np.ix_(rows, columns)]

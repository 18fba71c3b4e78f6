"""`keras-attn attention`: what a model attends to, as a plot or an HTML page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from keras_attn.cli.opened_model import (
    OpenedModel,
    is_checkpoint,
    is_text_tokenizer,
    load_tokenizer_of,
    open_model,
)
from keras_attn.cli.options import Model, Panel, Task, TokenizerFolder
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import say

if TYPE_CHECKING:
    import numpy as np

_TEXT, _IMAGE, _DRAWING = Panel("Text"), Panel("Image"), Panel("What is drawn")
_OPTIONS = Panel()


class _Example(NamedTuple):
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
        str | None, _TEXT.option("A second text, for a model of pairs such as BERT.")
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
            "The image, for a model of images. It is resized to the model's input "
            "and normalised by the checkpoint's preprocessor_config.json, or to "
            "[-1, 1]."
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
            "A plot, .png, .pdf or .svg, or for a text .html: a page to explore "
            "in a browser.",
            dir_okay=False,
        ),
    ] = Path("alignment.png"),
) -> None:
    """Draw what a model attends to in a text or an image.

    A text is drawn as a grid of layers and heads with its tokens, an image with a map
    of attention over it. A translator is drawn as the alignment of the text and its
    translation, unless layers, heads or a page are requested.

    Example: keras-attn attention bert-base-uncased "A dog runs." --output dog.html

    Example: keras-attn attention runs/en-de "A dog runs." --output dog.png

    Example: keras-attn attention vit-base --image dog.jpg --rollout --output dog.png

    Example: keras-attn attention model.keras --ids "4 8 15" --layer 0 --head 2
    """
    given = [
        name
        for name, value in (("TEXT", text), ("--ids", ids), ("--image", image))
        if value is not None
    ]
    if len(given) != 1:
        raise typer.BadParameter(
            "give one of TEXT, --ids and --image. "
            f"Received: {' and '.join(given) or 'none of them'}."
        )
    if rollout and (layer or head):
        raise typer.BadParameter(
            "--rollout combines all layers and heads; leave out --layer and --head."
        )
    is_page = output.suffix.lower() == ".html"
    if is_page and image is not None:
        raise typer.BadParameter(
            "--output of an image must end in .png, .pdf or .svg; a page is for texts."
        )
    with importing_tensorflow():
        from keras_attn import viz

    if text is not None and not model.is_dir() and tokenizer is None:
        raise ValueError(
            "MODEL has no tokenizer: give the folder of one by --tokenizer, or token "
            f"ids by --ids. Received: {str(model)!r}"
        )
    opened = _open(model, task, text, tokenizer)
    if image is not None:
        figure, drawn = _plot_image(opened, image, rollout, layer, head)
        viz.save_figure(figure, output)
        say(f"{drawn}: {output}", "dim")
        return
    if opened.translator is not None and ids is None:
        if text_pair is not None or tokenizer is not None:
            raise ValueError(
                "--text-pair and --tokenizer are not for the folder of a translator. "
                f"Received: {str(model)!r}"
            )
        if translation is None:
            (translation,) = opened.translator.translate([text or ""])
        if not (is_page or rollout or layer or head):
            alignment = opened.translator.align(text or "", translation)
            viz.save_figure(viz.plot_alignment(*alignment, title=text), output)
            say(translation)
            say(f"Alignment: {output}", "dim")
            return
        example = _Example(*opened.translator.example(text or "", translation))
        say(translation)
    elif ids is not None:
        if text_pair is not None:
            raise ValueError("--text-pair goes with TEXT. Received: --ids")
        example = _encode_ids(opened, ids, translation, tokenizer)
    else:
        if translation is not None:
            raise ValueError(
                "--translation is for the folder of a `keras-attn train` run, or for "
                f"--ids. Received: {str(model)!r}"
            )
        example = _encode_text(opened, text or "", text_pair, tokenizer)
    drawn = _draw_heads(
        opened, example, text or ids or "", rollout, layer, head, output
    )
    say(f"{drawn}: {output}", "dim")


def _open(
    path: Path, task: str | None, text: str | None, tokenizer: Path | None
) -> OpenedModel:
    """Opens the model, a checkpoint by default as an encoder, without a head."""
    if not is_checkpoint(path):
        return open_model(path, task)
    if text is not None:
        load_tokenizer_of(tokenizer or path)  # Fails sooner than loading the model.
    if task is not None:
        return open_model(path, task)
    try:
        return open_model(path, "encoder")
    except ValueError as error:
        # The family has no encoder of its own.
        if "`task` must be" not in str(error):
            raise
    return open_model(path)


def _encode_text(
    opened: OpenedModel, text: str, text_pair: str | None, folder: Path | None
) -> _Example:
    tokenizer = load_tokenizer_of(folder or opened.path)
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
) -> _Example:
    if opened.translator is not None:
        raise ValueError(
            "--ids is for models without a tokenizer; give the folder of a translator "
            f"a text. Received: {str(opened.path)!r}"
        )
    tokenizer = load_tokenizer_of(folder) if folder else None
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
) -> _Example:
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
            "MODEL must be a model of text for TEXT or --ids; use --image for a model "
            f"of images. Received: {str(opened.path)!r}"
        )
    if "decoder_token_ids" in names and target_ids is None:
        raise ValueError(
            "--ids and --translation must both be given as token ids for an "
            f"encoder-decoder. Received: {str(opened.path)!r}"
        )
    if not names <= set(inputs) or (target_ids and "decoder_token_ids" not in names):
        missing = names.symmetric_difference(inputs) & (names | {"decoder_token_ids"})
        raise ValueError(
            "MODEL must be a model of token ids, masks and segments. Received: "
            f"{str(opened.path)!r} and the input {', '.join(sorted(missing))}"
        )
    if not row.size:
        raise ValueError("TEXT must have at least one token. Received: ''")
    labels = [
        [str(index) for index in each] if tokenizer is None else tokenizer.tokens(each)
        for each in (ids, target_ids or [])
    ]
    return _Example(
        {name: inputs[name] for name in names},
        labels[0],
        labels[1] if target_ids is not None else None,
    )


def _draw_heads(
    opened: OpenedModel,
    example: _Example,
    title: str,
    rollout: bool,
    layers: list[int] | None,
    heads: list[int] | None,
    output: Path,
) -> str:
    """Writes the plot or the page; returns what is on it."""
    from keras_attn import viz
    from keras_attn.file_writing import write_atomically

    scores = viz.capture_attention(opened.model, example.inputs)
    if rollout:
        if example.target_tokens is not None:
            raise ValueError(
                "--rollout must be of a model with a single sequence, not of an "
                f"encoder-decoder. Received: {str(opened.path)!r}"
            )
        scores = {"rollout": viz.attention_rollout(scores)[:, None]}
    _check_numbers("--layer", layers, len(scores))
    paths = [path for index, path in enumerate(scores) if not layers or index in layers]
    # Layers may differ in their number of heads.
    _check_numbers("--head", heads, min(scores[path].shape[1] for path in paths))
    options = {"layers": layers or None, "heads": heads or None, "title": title}
    tokens = example.source_tokens, example.target_tokens
    if output.suffix.lower() == ".html":
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

    shape = getattr(opened.model.input, "shape", ())
    if len(shape) != 4:
        raise ValueError(
            "MODEL must be a model of images for --image; give a text otherwise. "
            f"Received: {str(opened.path)!r}"
        )
    pixels, normalised = _read_image(file, shape[1:], opened.path)
    if rollout:
        try:
            maps = viz.image_rollout(opened.model, normalised[None])
        except ValueError as error:
            if "for a rollout" not in str(error):
                raise
            raise ValueError(
                "--rollout must be of a model whose layers all attend over the whole "
                "image, as those of a ViT; leave it out for windowed models such as "
                f"Swin. Received: {str(opened.path)!r}"
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
    """Repeats the values of a coarser map, of a later stage, up to a given shape."""
    import numpy as np

    rows, columns = (
        np.arange(size) * old // size
        for size, old in zip(shape, heat.shape, strict=True)
    )
    return heat[np.ix_(rows, columns)]


def _read_image(
    file: Path, shape: tuple[int | None, ...], model: Path
) -> "tuple[np.ndarray, np.ndarray]":
    """The pixels of a file at the size of the model's input, and normalised for it."""
    import keras
    import numpy as np

    from keras_attn.file_reading import read_json

    height, width, channels = shape
    if channels not in (1, 3):
        raise ValueError(
            "MODEL must take images of 1 or 3 channels for --image. "
            f"Received: {channels} channels"
        )
    size = (height, width) if height and width else None
    mode = "rgb" if channels == 3 else "grayscale"
    try:
        loaded = keras.utils.load_img(file, color_mode=mode, target_size=size)
    except OSError as error:
        raise ValueError(
            f"--image must be an image file, such as .png or .jpg. "
            f"Received: {str(file)!r}"
        ) from error
    pixels = keras.utils.img_to_array(loaded) / 255.0
    settings = model / "preprocessor_config.json"
    about = read_json(settings) if settings.is_file() else {}
    mean, deviation = (
        np.asarray(about.get(name) or [0.5], "float32")
        for name in ("image_mean", "image_std")
    )
    return pixels, (pixels - mean) / deviation

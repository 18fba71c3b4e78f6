"""`keras-attn attention`: what a model attends to, as a plot or an HTML page.

Opening a model: `cli/opened_model.py`; images and captions: `cli/image_maps.py`;
scores: `layers/capture.py`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from keras_attn.cli.image_maps import (
    check_numbers,
    draw_caption,
    draw_image,
    is_captioner,
)
from keras_attn.cli.opened_model import (
    OpenedModel,
    is_checkpoint,
    is_text_tokenizer,
    load_folder_tokenizer,
    local_model,
    noting_warnings,
    open_model,
)
from keras_attn.cli.options import Model, Panel, Task, TokenizerFolder
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import say
from keras_attn.files.hub_names import with_hub_names

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
            "The image, for an image model or a captioner. It is prepared as the "
            "checkpoint's preprocessor_config.json or the model's `preprocessing` "
            "says, or else resized to the model's input and normalized to [-1, 1]."
        ),
    ] = None,
    pixels: Annotated[
        Literal["unit", "signed", "imagenet"] | None,
        _IMAGE.option(
            "Value range in which the model takes images, if it does not say. unit: "
            "[0, 1]. signed: [-1, 1]. imagenet: [0, 1], normalized by ImageNet's mean "
            "and standard deviation. The image is then squeezed to the model's size."
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
            "for a text or a caption, the last for an image.",
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
    beside: Annotated[
        str | None,
        _DRAWING.option(
            "Another model, whose attention to the same text is shown beside, on a "
            "page (.html): a folder with a tokenizer, or its name, hf://owner/name; or "
            "a file, for which the tokenizer of MODEL is taken. With --tokenizer, both "
            "take that.",
            metavar="MODEL",
        ),
    ] = None,
    task: Task = None,
    output: Annotated[
        Path,
        _OPTIONS.option(
            "A plot (.png, .pdf or .svg) or a page to explore in a browser (.html).",
            dir_okay=False,
        ),
    ] = Path("alignment.png"),
) -> None:
    """Draw what a model attends to in a text or an image.

    A text is drawn as a grid of layers and heads with its tokens, an image with a map
    of attention over it. A translator is drawn as the alignment of the text and its
    translation, unless layers, heads or a page are requested. A captioner describes
    the image, and where it looked is drawn for each word, as the mean of all layers and
    heads; its tokenizer is in the folder of the model, or in --tokenizer.

    Example: keras-attn attention checkpoints/bert "A dog runs." --output dog.html

    Example: keras-attn attention runs/a "A dog." --beside runs/b --output two.html

    Example: keras-attn attention runs/en-de "A dog runs." --output dog.png

    Example: keras-attn attention checkpoints/vit --image dog.jpg --output dog.png

    Example: keras-attn attention captioner/model.keras --image dog.jpg --output a.html

    Example: keras-attn attention model.keras --ids "4 8 15" --layer 0 --head 2
    """
    _check_options(
        {"TEXT": text, "--ids": ids, "--image": image},
        {"--text-pair": text_pair, "--translation": translation},
        rollout and bool(layer or head),
    )
    if pixels is not None and image is None:
        raise typer.BadParameter("--pixels is for --image.")
    if beside is not None and not (text and is_page(output)):
        raise typer.BadParameter("--beside needs TEXT and an --output of .html.")
    if beside == model:
        raise typer.BadParameter("--beside must be another model than MODEL.")
    with importing_tensorflow():
        from keras_attn import viz

    path = local_model(model)
    if text is not None and path.is_file() and tokenizer is None:
        raise ValueError(
            "MODEL has no tokenizer: pass the folder of one as --tokenizer, or token "
            f"ids as --ids. Received: {model!r}"
        )
    opened = open_for_attention(path, task, text, tokenizer)
    if image is not None:
        drawn = _draw_image(
            opened, image, rollout, layer, head, pixels, tokenizer, output
        )
    elif ids is not None:
        example = _encode_ids(opened, ids, translation, tokenizer)
        drawn = _draw_heads(opened, example, ids, rollout, layer, head, output)
    elif opened.translator is not None:
        if text_pair is not None or tokenizer is not None or beside is not None:
            raise ValueError(
                "--text-pair, --tokenizer and --beside do not apply to the folder of "
                f"a translator. Received: {model!r}"
            )
        text = text or ""
        if translation is None:
            (translation,) = opened.translator.translate([text])
        if rollout or layer or head or is_page(output):
            example = Example(*opened.translator.example(text, translation))
            drawn = _draw_heads(opened, example, text, rollout, layer, head, output)
        else:
            alignment = opened.translator.align(text, translation)
            with noting_warnings():
                viz.save_figure(viz.plot_alignment(*alignment, title=text), output)
            drawn = "Alignment"
        say(translation)
    else:
        if translation is not None:
            raise ValueError(
                "--translation requires the folder of a `keras-attn train` run, or "
                f"--ids. Received: {model!r}"
            )
        text = text or ""
        example = encode_text(opened, text, text_pair, tokenizer)
        other = None
        if beside is not None:
            other_path = local_model(beside, "--beside")
            folder = tokenizer or (other_path if other_path.is_dir() else path)
            second = open_for_attention(other_path, task, text, folder)
            if second.translator is not None:
                raise ValueError(
                    "--beside must not be the folder of a translator. "
                    f"Received: {beside!r}"
                )
            other = second, encode_text(second, text, text_pair, folder)
        drawn = _draw_heads(opened, example, text, rollout, layer, head, output, other)
    say(f"{drawn}: {output}", "dim")


def _check_options(
    inputs: dict[str, Any], targets: dict[str, Any], is_filtered: bool
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


def is_page(output: Path) -> bool:
    """Whether a page is asked for, not a figure."""
    return output.suffix.lower() == ".html"


def open_for_attention(
    path: Path, task: str | None, text: str | None, tokenizer: str | Path | None
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
    opened: OpenedModel, text: str, text_pair: str | None, folder: str | Path | None
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
    opened: OpenedModel, ids: str, target_ids: str | None, folder: str | None
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


def _draw_image(
    opened: OpenedModel,
    file: Path,
    rollout: bool,
    layers: list[int] | None,
    heads: list[int] | None,
    pixels: str | None,
    tokenizer: str | None,
    output: Path,
) -> str:
    """Writes the plot or the page of an image; returns what is on it."""
    if is_captioner(opened):
        if rollout:
            raise ValueError(
                "--rollout needs a model whose layers all attend over the whole image, "
                f"which a captioner is not. Received: {str(opened.path)!r}"
            )
        words = _load_words(opened.path, tokenizer)
        options = (file, words, layers, heads, pixels, output)
        caption, drawn = draw_caption(opened, *options)
        say(caption)
        return drawn
    if tokenizer is not None:
        raise ValueError(
            "--tokenizer is for a text or a captioner. "
            f"Received: --tokenizer {str(tokenizer)!r} with {str(opened.path)!r}"
        )
    return draw_image(opened, file, rollout, layers, heads, pixels, output)


def _load_words(path: Path, tokenizer: str | None) -> Any:
    """The tokenizer of a captioner: of --tokenizer, or in the folder of the model."""
    folder = tokenizer or (path if path.is_dir() else path.resolve().parent)
    try:
        return load_folder_tokenizer(folder)
    except ValueError as error:
        raise ValueError(
            "--tokenizer must be the folder of a captioner's tokenizer, if there is "
            f"none beside the model; `tokenizer.save` writes it: {error}"
        ) from error


def _draw_heads(
    opened: OpenedModel,
    example: Example,
    title: str,
    rollout: bool,
    layers: list[int] | None,
    heads: list[int] | None,
    output: Path,
    beside: tuple[OpenedModel, Example] | None = None,
) -> str:
    """Writes the plot or the page, perhaps of two models; returns what is on it."""
    from keras_attn import viz
    from keras_attn.files.writing import write_atomically

    scores = _capture(opened, example, rollout)
    check_numbers("--layer", layers, len(scores))
    paths = [path for index, path in enumerate(scores) if not layers or index in layers]
    # Layers may differ in their number of heads.
    check_numbers("--head", heads, min(scores[path].shape[1] for path in paths))
    options = {"layers": layers or None, "heads": heads or None, "title": title}
    tokens = example.source_tokens, example.target_tokens
    if beside is not None:
        other, second = beside
        models = {
            with_hub_names(str(opened.path)): (scores, *tokens),
            with_hub_names(str(other.path)): (
                _capture(other, second, rollout),
                second.source_tokens,
                second.target_tokens,
            ),
        }
        page = viz.attention_comparison_page(models, **options)
        write_atomically(output, page.encode())
    elif is_page(output):
        page = viz.attention_page(scores, *tokens, **options)
        write_atomically(output, page.encode())
    else:
        with noting_warnings():  # Such as of a font that is missing.
            figure = viz.plot_attention_heads(scores, *tokens, **options)
            viz.save_figure(figure, output)
    if rollout:
        return "Attention rollout"
    if len(paths) == 1:
        return f"Attention of {paths[0]}"
    return f"Attention of {len(paths)} layers, {paths[0]} to {paths[-1]}"


def _capture(
    opened: OpenedModel, example: Example, rollout: bool
) -> "dict[str, np.ndarray]":
    """The scores of all layers, or their rollout as those of one."""
    from keras_attn import viz

    scores = viz.capture_attention(opened.model, example.inputs)
    if not rollout:
        return scores
    if example.target_tokens is not None:
        raise ValueError(
            "--rollout needs a model with a single sequence, not an "
            f"encoder-decoder. Received: {str(opened.path)!r}"
        )
    return {"rollout": viz.attention_rollout(scores)[:, None]}

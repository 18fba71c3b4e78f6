"""`keras-attn explain`: what a layer does, step by step.

An attention layer as a page or a figure: made up (`cli/made_up_layers.py`), or of a
model (`viz/layer_steps/captured.py`). Masks, windows and positions as figures, and
convolutions as numbers in the terminal.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keras_attn.cli.attention import Example, encode_text, is_page, open_for_attention
from keras_attn.cli.made_up_layers import (
    KINDS,
    OTHER_WORDS,
    WITH_MEMORY,
    WORDS,
    Sizes,
    make_layer,
)
from keras_attn.cli.opened_model import OpenedModel, given_tokenizer, local_model
from keras_attn.cli.options import Panel, Task, TokenizerFolder, model_with_weights
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import naming_options, say

if TYPE_CHECKING:
    from keras_attn.viz.layer_steps import Explained

_MADE_UP, _MODEL = Panel("Made-up layer"), Panel("Layer of a model")
_OPTIONS = Panel()
_MOST_TOKENS = 32  # `viz.attention_layer.MOST_LABELLED`, whose import would be slow.
_FIGURES = {
    "masks": "masks of all kinds",
    "windows": "Swin's, shifted, with masks",
    "positions": "50 sinusoids, 128 wide, and their distances",
}
_NUMBERS = {
    "convolution": "a fully connected layer as one",
    "unpooling": "max pooling that stores places, and its reverse",
    "transposed-convolution": "in one and in two dimensions",
}
_ALL_KINDS = [*KINDS, *_FIGURES, *_NUMBERS]


def _meanings(kinds: dict[str, str]) -> str:
    return "; ".join(f"{name}: {meaning}" for name, meaning in kinds.items())


_KIND_HELP = (
    f"An attention layer: {_meanings({x: y.meaning for x, y in KINDS.items()})}. "
    f"A figure: {_meanings(_FIGURES)}. Printed numbers: {_meanings(_NUMBERS)}. "
    "With --model the text."
)


def explain(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help=_KIND_HELP,
        ),
    ] = "attention",
    text: Annotated[
        str | None,
        typer.Argument(help="With --model: the text to read; quote it."),
    ] = None,
    tokens: Annotated[
        str | None,
        _MADE_UP.option(f'Words, separated by spaces. Default: "{WORDS}".'),
    ] = None,
    memory: Annotated[
        str | None,
        _MADE_UP.option(
            "Words that are attended to, of layers with two sequences. Default: "
            f'"{OTHER_WORDS}".'
        ),
    ] = None,
    mask: Annotated[
        list[str] | None,
        _MADE_UP.option(
            'causal, or 1 or 0 for each word that is attended to, such as "1 1 0" '
            "(0: padding). May be given twice."
        ),
    ] = None,
    heads: Annotated[int | None, _MADE_UP.count("Number of heads. Default: 2.")] = None,
    width: Annotated[
        int | None, _MADE_UP.count("Numbers of each word. Default: 8.")
    ] = None,
    seed: Annotated[
        int | None,
        _MADE_UP.count("Seed of words and weights. Default: 0.", min=0),
    ] = None,
    model: Annotated[
        str | None,
        _MODEL.option(
            "A model with weights, as for `keras-attn attention`.",
            metavar="PATH",
            callback=lambda context, name: name and model_with_weights(context, name),
        ),
    ] = None,
    layer: Annotated[
        int | None,
        _MODEL.option(
            "A layer, counted from 0 as in `keras-attn attention`. Default: 0.",
            metavar="N",
        ),
    ] = None,
    tokenizer: TokenizerFolder = None,
    task: Task = None,
    head: Annotated[
        list[int] | None,
        _OPTIONS.option(
            "A head, counted from 0; may be given several times. Default: all.",
            metavar="N",
        ),
    ] = None,
    permutation: Annotated[
        str | None,
        _OPTIONS.option(
            'A second row, of the words in this order, such as "2 0 1".',
            metavar="ORDER",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        _OPTIONS.option(
            "A page to explore in a browser (.html), or a figure (.png, .pdf, .svg). "
            "Default: layer.html; of a figure KIND.png.",
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Show an attention layer step by step, as a page to explore.

    X → Q, K → E → A → V → Y of a small layer with made-up weights of one decimal, or of
    a layer of a model. On the page a click on a cell of E or A, or Enter, shows the
    numbers that the score is made of. Some kinds are of no attention layer: figures,
    and convolutions in numbers.

    Example: keras-attn explain attention --tokens "[START] Big cat" --mask causal

    Example: keras-attn explain attention --permutation "2 0 1" --output order.html

    Example: keras-attn explain additive --memory "Le chat dort" --output additive.html

    Example: keras-attn explain --model checkpoints/bert --layer 3 --head 5 "A dog runs"

    Example: keras-attn explain windows --output windows.png

    Example: keras-attn explain transposed-convolution
    """
    made_up = {"--tokens": tokens, "--memory": memory, "--mask": mask, "--heads": heads}
    made_up |= {"--width": width, "--seed": seed}
    of_model = {"--layer": layer, "--tokenizer": tokenizer, "--task": task}
    of_layers = {"--permutation": permutation, "--head": head}
    if model is not None:
        _refuse(made_up, "a made-up layer")
        read = _text_of(kind, text)
        choose = functools.partial(_of_model, model, task, read, tokenizer, layer or 0)
    else:
        _refuse({**of_model, "TEXT": text}, "a layer of --model")
        _check_kind(kind)
        if kind not in KINDS:
            _refuse({**made_up, **of_layers}, f"attention layers, not for {kind}")
        if kind in _NUMBERS:
            _refuse({"--output": output}, f"pages and figures; {kind} is printed")
            return _print_numbers(kind)
        if kind in _FIGURES:
            return _draw(kind, output or Path(f"{kind}.png"))
        words = _check_made_up(kind, tokens, memory, heads, width)
        masks = tuple(_mask(each) for each in mask or ())
        choose = functools.partial(_made_up, kind, *words, seed or 0, masks)
    order = None if permutation is None else _numbers("--permutation", permutation)
    output = output or Path("layer.html")
    with importing_tensorflow():
        from keras_attn.viz import layer_steps

    names = {"permutation": "--permutation", "mask": "--mask", "heads": "--head"}
    names["folder"] = "--tokenizer"
    with naming_options(**names):
        shown, arguments, labels, title = choose()
        explained = layer_steps.explain_orders(shown, arguments, order, *labels)
        _write(explained, head or None, title, output)
    if explained.effect:
        say(explained.effect)
    say(f"{title}: {output}", "dim")


def _print_numbers(kind: str) -> None:
    """Prints a layer's worked examples."""
    with importing_tensorflow():
        from keras_attn import viz

    examples = {
        "convolution": [viz.worked_convolution],
        "unpooling": [viz.worked_unpooling],
        "transposed-convolution": [
            viz.worked_transposed_convolution,
            lambda: viz.worked_transposed_convolution([[1, 2], [3, 4]]),
        ],
    }
    say("\n\n".join(example().text for example in examples[kind]))


def _draw(kind: str, output: Path) -> None:
    """Writes the figure of masks, windows or positions."""
    if is_page(output):
        raise ValueError(
            f"--output must end in .png, .pdf or .svg for {kind}; .html is for "
            f"attention layers. Received: --output {str(output)!r}"
        )
    with importing_tensorflow():
        from keras_attn import layers, viz

    if kind == "positions":
        figure = viz.plot_positions(layers.SinusoidalPositionEmbedding())
    else:
        figure = viz.plot_masks() if kind == "masks" else viz.plot_windows()
    viz.save_figure(figure, output)
    say(f"{kind}: {_FIGURES[kind]}: {output}", "dim")


def _made_up(
    kind: str, words: list[str], others: list[str], sizes: Sizes, seed: int, masks: Any
) -> tuple[Any, Any, Any, str]:
    """A made-up layer, the arguments of a call, labels and a title."""
    from keras_attn.viz import layer_steps

    made = make_layer(kind, words, others, sizes, seed)
    inputs = {"value": None, "key": None, **made.inputs}
    arguments = layer_steps.call_arguments(
        made.layer, inputs["query"], inputs["value"], inputs["key"], masks or None
    )
    labels = made.labels, made.value_labels
    title = f"{kind}: {KINDS[kind].meaning}; made-up weights"
    return made.layer, arguments, labels, title


def _of_model(
    name: str, task: str | None, text: str, tokenizer: str | None, number: int
) -> tuple[Any, Any, Any, str]:
    """A layer of a model, the arguments of its call, labels and a title."""
    opened = open_for_attention(local_model(name), task, None, None)
    if opened.translator is None and "token_ids" not in opened.input_names:
        raise ValueError(
            "--model must read a text. What an image model attends to is drawn by "
            "`keras-attn attention --image`, and a layer of it step by step by "
            f"`viz.plot_attention_layer`. Received: --model {name!r}"
        )
    example = _example(opened, text, tokenizer)
    layer, arguments = _layer_of(opened, example, number)
    labels = _labels_of(layer, arguments, example)
    return layer, arguments, labels, f"{layer.path}: {text}"


def _text_of(kind: str, text: str | None) -> str:
    """The text that a model reads: the only argument, or the second one."""
    if text is None:
        if kind in _ALL_KINDS:
            raise ValueError(
                f"--model needs a TEXT to read. Received: {kind!r}, a kind of layer"
            )
        return kind
    if kind != "attention":
        raise ValueError(
            "KIND is for made-up layers; with --model the layer is what it is. "
            f"Received: {kind!r}"
        )
    return text


def _refuse(given: dict[str, Any], what: str) -> None:
    """Raises for an option that belongs to the other kind of layer."""
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter(f"{name} is for {what}.")


def _check_kind(kind: str) -> None:
    """Raises for a kind that there is none of."""
    from keras_attn.checks.arguments import did_you_mean

    if kind not in _ALL_KINDS:
        raise ValueError(
            f"KIND must be one of {', '.join(_ALL_KINDS)}; "
            f"{did_you_mean(kind, _ALL_KINDS)}Received: {kind!r}"
        )


def _check_made_up(
    kind: str,
    tokens: str | None,
    memory: str | None,
    heads: int | None,
    width: int | None,
) -> tuple[list[str], list[str], Sizes]:
    """The words and the sizes of a made-up layer."""
    found = KINDS[kind]
    unused = {
        "--tokens": tokens is not None and found.inputs == "a map",
        "--memory": memory is not None and found.inputs not in WITH_MEMORY,
        "--heads": heads is not None and not found.has_heads,
    }
    for name, is_unused in unused.items():
        if is_unused:
            raise ValueError(
                f"{name} is for other kinds: {kind} is {found.meaning}, of "
                f"{found.inputs}. Received: {name}"
            )
    words: list[str] = (WORDS if tokens is None else tokens).split()
    others: list[str] = (OTHER_WORDS if memory is None else memory).split()
    for name, texts in (("--tokens", words), ("--memory", others)):
        _check_count(name, len(texts))
    heads, width = heads or 2, width or 8
    if found.has_heads and width % heads:
        raise ValueError(
            "--width must be a multiple of --heads. "
            f"Received: --width {width} --heads {heads}"
        )
    return words, others, Sizes(heads, width)


def _check_count(name: str, count: int) -> None:
    if not 1 <= count <= _MOST_TOKENS:
        raise ValueError(
            f"{name} must have from 1 to {_MOST_TOKENS} tokens: each pair of them is a "
            f"cell of the page. Received: {count} tokens"
        )


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(
            f'{option} must be whole numbers, such as "2 0 1". '
            f"Received: {option} {text!r}"
        ) from None


def _mask(text: str) -> Any:
    """`causal`, or 1 and 0, with or without spaces."""
    if text == "causal":
        return text
    values = text.replace(",", " ").split()
    if len(values) == 1:
        values = list(values[0])
    if not values or not {*values} <= {"0", "1"}:
        raise ValueError(
            '--mask must be causal, or 1 or 0 for each word, such as "1 1 0". '
            f"Received: --mask {text!r}"
        )
    return [int(value) for value in values]


def _example(opened: OpenedModel, text: str, tokenizer: str | None) -> Example:
    """The inputs of a model for a text; of a translator with its translation."""
    if opened.translator is None:
        if not opened.has_tokenizer:
            given_tokenizer(opened.path, tokenizer)  # Raises if there is none.
        example = encode_text(opened, text, None, tokenizer)
    else:
        (translation,) = opened.translator.translate([text])
        example = Example(*opened.translator.example(text, translation))
    _check_count("TEXT", len(example.source_tokens))
    if example.target_tokens is not None:
        _check_count("The translation of TEXT", len(example.target_tokens))
    return example


def _layer_of(opened: OpenedModel, example: Example, number: int) -> tuple[Any, Any]:
    """A layer of a model, and the arguments of its call."""
    from keras_attn.viz.layer_steps.captured import capture_calls

    calls = capture_calls(opened.model, example.inputs)
    if not calls:
        raise ValueError(
            "--model must call an attention layer whose steps can be shown; one that "
            "attends inside a recurrence is drawn by `keras-attn attention`. "
            f"Received: {str(opened.path)!r}"
        )
    if not 0 <= number < len(calls):
        paths = ", ".join(f"{i} {each.layer.path}" for i, each in enumerate(calls))
        raise ValueError(
            f"--layer must be from 0 to {len(calls) - 1} for this model: {paths}. "
            f"Received: --layer {number}"
        )
    return calls[number].layer, calls[number].arguments


def _labels_of(layer: Any, arguments: Any, example: Example) -> tuple[Any, Any]:
    """The tokens as labels of queries and keys, where their numbers fit."""
    from keras_attn.viz.heads import choose_tokens

    sources, targets = choose_tokens(
        layer.path, example.source_tokens, example.target_tokens
    )
    query = arguments.get("query", arguments.get("inputs"))
    value = arguments.get("value")
    value = query if value is None else value

    def fitting(tokens, count):
        return tokens if len(tokens) == count else None

    return fitting(targets, query.shape[1]), fitting(sources, value.shape[1])


def _write(
    explained: "Explained", heads: list[int] | None, title: str, output: Path
) -> None:
    """Writes the page or the figure."""
    from keras_attn import viz
    from keras_attn.files.writing import write_atomically
    from keras_attn.viz.attention_layer import plot_steps
    from keras_attn.viz.layer_page import steps_page

    if is_page(output):
        page = steps_page(explained, heads, title)
        write_atomically(output, page.encode())
    else:
        viz.save_figure(plot_steps(explained, heads, title), output)

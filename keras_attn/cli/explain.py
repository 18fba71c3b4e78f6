"""`keras-attn explain`: one attention layer, step by step, as a page or a figure.

Steps: `viz/layer_steps`; made-up layers: `cli/made_up_layers.py`.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keras_attn.cli.attention import Example, encode_text, is_page, open_for_attention
from keras_attn.cli.made_up_layers import KINDS, OTHER_WORDS, WORDS, Sizes, make_layer
from keras_attn.cli.opened_model import OpenedModel
from keras_attn.cli.options import Panel, Task, TokenizerFolder, model_with_weights
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import naming_options, say

if TYPE_CHECKING:
    from keras_attn.viz.layer_steps import Explained

_MADE_UP, _MODEL = Panel("Made-up layer"), Panel("Layer of a model")
_OPTIONS = Panel()
_MOST_TOKENS = 32  # `viz.layer_page.MOST_TOKENS`, whose import would be slow.
_MEANINGS = "; ".join(f"{name}: {kind.meaning}" for name, kind in KINDS.items())


def explain(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help=f"What kind of layer. {_MEANINGS}. With --model the text.",
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
    width: Annotated[int, _MADE_UP.count("Numbers of each word.")] = 8,
    seed: Annotated[int, _MADE_UP.count("Seed of words and weights.", min=0)] = 0,
    model: Annotated[
        Path | None,
        _MODEL.option(
            "A model with weights, as for `keras-attn attention`.",
            callback=lambda context, path: path and model_with_weights(context, path),
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
        Path,
        _OPTIONS.option(
            "A page to explore in a browser (.html), or a figure (.png, .pdf, .svg).",
            dir_okay=False,
        ),
    ] = Path("layer.html"),
) -> None:
    """Show an attention layer step by step: X → Q, K → E → A → V → Y.

    The layer is a small one, with made-up weights of one decimal, or one of a model.
    On the page a click on a cell of E or A shows the numbers that the score is made of.

    Example: keras-attn explain attention --tokens "[START] Big cat" --mask causal

    Example: keras-attn explain attention --permutation "2 0 1" --output order.html

    Example: keras-attn explain additive --memory "Le chat dort" --output additive.html

    Example: keras-attn explain --model checkpoints/bert --layer 3 --head 5 "A dog runs"
    """
    made_up = {"--tokens": tokens, "--memory": memory, "--mask": mask, "--heads": heads}
    own = {"--layer": layer, "--tokenizer": tokenizer, "--task": task, "TEXT": text}
    if model is None:
        _refuse(own, "a layer of --model")
    else:
        _refuse(made_up, "a made-up layer")
    order = None if permutation is None else _numbers("--permutation", permutation)
    if model is None:
        words = _check_made_up(kind, tokens, memory, heads, width)
        masks = tuple(_mask(each) for each in mask or ())
        choose = functools.partial(_made_up, kind, *words, seed, masks)
    else:
        read = _text_of(kind, text)
        choose = functools.partial(_of_model, model, task, read, tokenizer, layer or 0)
    with importing_tensorflow():
        from keras_attn.viz import layer_steps

    names = {"permutation": "--permutation", "mask": "--mask", "heads": "--head"}
    with naming_options(**names):
        shown, arguments, labels, title = choose()
        explained = layer_steps.explain_orders(shown, arguments, order)
        orders = layer_steps.labels_of_orders(explained, shown, *labels, order)
        _write(explained, orders, head or None, title, output)
    if explained.effect:
        say(explained.effect)
    say(f"{title}: {output}", "dim")


def _made_up(
    kind: str, words: list[str], others: list[str], sizes: Sizes, seed: int, masks: Any
) -> tuple[Any, Any, Any, str]:
    """A made-up layer, the arguments of a call, labels and a title."""
    from keras_attn.viz import layer_steps

    made = make_layer(kind, words, others, sizes, seed)
    arguments = layer_steps.call_arguments(
        made.layer, **made.inputs, mask=masks or None
    )
    labels = made.labels, made.value_labels
    title = f"{kind}: {KINDS[kind].meaning}; made-up weights"
    return made.layer, arguments, labels, title


def _of_model(
    path: Path, task: str | None, text: str, tokenizer: Path | None, number: int
) -> tuple[Any, Any, Any, str]:
    """A layer of a model, the arguments of its call, labels and a title."""
    opened = open_for_attention(path, task, text, tokenizer)
    example = _example(opened, text, tokenizer)
    layer, arguments = _layer_of(opened, example, number)
    labels = _labels_of(layer, arguments, example)
    return layer, arguments, labels, f"{layer.path}: {text}"


def _text_of(kind: str, text: str | None) -> str:
    """The text that a model reads: the only argument, or the second one."""
    if text is None:
        if kind in KINDS:
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


def _check_made_up(
    kind: str,
    tokens: str | None,
    memory: str | None,
    heads: int | None,
    width: int,
) -> tuple[list[str], list[str], Sizes]:
    """The words and the sizes of a made-up layer."""
    from keras_attn.checks.arguments import did_you_mean

    if kind not in KINDS:
        raise ValueError(
            f"KIND must be one of {', '.join(KINDS)}; {did_you_mean(kind, KINDS)}"
            f"Received: {kind!r}"
        )
    found = KINDS[kind]
    unused = {
        "--tokens": tokens is not None and found.inputs == "a map",
        "--memory": memory is not None and found.inputs not in _WITH_MEMORY,
        "--heads": heads is not None and not found.has_heads,
    }
    for name, is_unused in unused.items():
        if is_unused:
            raise ValueError(
                f"{name} is for other kinds: {kind} is {found.meaning}, of "
                f"{found.inputs}. Received: {name}"
            )
    words, others = (WORDS if tokens is None else tokens).split(), OTHER_WORDS.split()
    if memory is not None:
        others = memory.split()
    for name, texts in (("--tokens", words), ("--memory", others)):
        _check_count(name, len(texts))
    heads = 2 if heads is None else heads
    if found.has_heads and width % heads:
        raise ValueError(
            "--width must be a multiple of --heads. "
            f"Received: --width {width} --heads {heads}"
        )
    return words, others, Sizes(heads, width)


_WITH_MEMORY = ("two sequences", "a query and a sequence")


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


def _example(opened: OpenedModel, text: str, tokenizer: Path | None) -> Example:
    """The inputs of a model for a text; of a translator with its translation."""
    if opened.translator is None:
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
    explained: "Explained",
    orders: Any,
    heads: list[int] | None,
    title: str,
    output: Path,
) -> None:
    """Writes the page or the figure."""
    from keras_attn import viz
    from keras_attn.files.writing import write_atomically
    from keras_attn.viz.attention_layer import plot_steps
    from keras_attn.viz.layer_page import steps_page

    if is_page(output):
        page = steps_page(explained, orders, heads, title)
        write_atomically(output, page.encode())
    else:
        viz.save_figure(plot_steps(explained, orders, heads, title), output)

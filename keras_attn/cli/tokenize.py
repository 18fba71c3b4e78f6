"""`keras-attn tokenize`: how tokenizers cut a text.

Opening the tokenizer of a folder: `cli/opened_model.py`.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_attn.cli.options import Json, Panel
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import console, naming_options, print_json, say
from keras_attn.files.hub import local_folder

_OPTIONS = Panel()
# Tokens side by side differ; special ones, such as [CLS], are gray.
_COLORS = ("cyan", "yellow", "green", "magenta")
_SPECIAL = "white on grey35"


def tokenize(
    text: Annotated[str, typer.Argument(help="What to cut; quote it.")],
    tokenizer: Annotated[
        list[str],
        _OPTIONS.option(
            "The folder of a checkpoint, a run or a tokenizer, or its name on the hub, "
            "hf://owner/name; a file that `Tokenizer.save` wrote; or a name: "
            "character, one token per character of TEXT; byte, one per byte of its "
            "UTF-8. Several are shown side by side.",
            metavar="FOLDER|NAME",
        ),
    ],
    parse_special_tokens: Annotated[
        bool,
        _OPTIONS.option(
            "Read special tokens in TEXT, such as [MASK], as what they stand for.",
            "--parse-special-tokens",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show how a text is cut into tokens: pieces and ids.

    The row is the one that a model gets, with the special tokens that its tokenizer
    adds, and is not truncated. Spaces are visible, and bytes that are no whole
    character are written as such. On a terminal tokens are colored, otherwise there is
    a line between them.

    Example: keras-attn tokenize "A man sleeps." --tokenizer character --tokenizer byte

    Example: keras-attn tokenize "The dog [MASK]." --tokenizer checkpoints/MiniLM
    --parse-special-tokens
    """
    if not text:
        raise ValueError(f"TEXT must not be empty. Received: {text!r}")
    with importing_tensorflow():
        from keras_attn import data  # noqa: F401

    with naming_options(
        path="--tokenizer", folder="--tokenizer", texts="TEXT", text="TEXT"
    ):
        rows = [
            _cut(label, opened, text, parse_special_tokens)
            for name in tokenizer
            for label, opened in _open(name, text)
        ]
    if json:
        print_json({"text": text, "tokenizers": rows})
        return
    for row in rows:
        _print_cut(row)
    say()
    _print_table(rows)


def _open(name: str, text: str) -> list[tuple[str, Any]]:
    """The tokenizers that a value of --tokenizer means, by what to call them."""
    from keras_attn import data
    from keras_attn.cli.opened_model import is_translator, load_folder_tokenizer
    from keras_attn.data.text.byte_pairs import LETTER_OF_BYTE

    if name == "character":
        return [(name, data.CharacterTokenizer("".join(sorted(set(text)))))]
    if name == "byte":
        pieces = [*LETTER_OF_BYTE.values(), "<|endoftext|>"]
        return [(name, data.ByteLevelBPETokenizer(pieces, []))]
    path = local_folder(name, "tokenizer")
    if path.is_file():
        return [(name, data.load_tokenizer(path))]
    if not path.exists():
        raise ValueError(
            "--tokenizer must be a folder or a file that exists, or one of character, "
            f"byte. Received: --tokenizer {name!r}"
        )
    if is_translator(path):
        files = {side: path / f"{side}_tokenizer.json" for side in ("source", "target")}
        return [
            (f"{name} ({side})", data.load_tokenizer(file))
            for side, file in files.items()
        ]
    return [(name, load_folder_tokenizer(path))]


def _cut(label: str, tokenizer: Any, text: str, parse: bool) -> dict[str, Any]:
    """What a tokenizer makes of a text, as `--json` prints it."""
    from keras_attn.cli.opened_model import is_text_tokenizer
    from keras_attn.data.text.base_tokenizer import SPECIAL_PIECES

    if is_text_tokenizer(tokenizer):
        batch = tokenizer.encode_batch(
            [text], parse_special_tokens=parse, max_length=sys.maxsize
        )
        ids = batch["token_ids"][0].tolist()
        special, limit = tokenizer.special_token_ids, tokenizer.max_length
    elif parse:
        raise ValueError(
            "--parse-special-tokens is for tokenizers of pretrained models, whose "
            f"special tokens can be written in a text. Received: --tokenizer {label!r}"
        )
    else:
        ids, limit = tokenizer.encode(text), None
        special = {piece: index for index, piece in enumerate(SPECIAL_PIECES)}
    pieces = tokenizer.tokens(ids)
    is_special = [index in special.values() for index in ids]
    return {
        "tokenizer": label,
        "kind": type(tokenizer).__name__,
        "vocabulary_size": tokenizer.vocabulary_size,
        "max_length": limit,
        "ids": ids,
        "pieces": pieces,
        "texts": [
            piece if added else _text(piece, tokenizer.spells_bytes)
            for piece, added in zip(pieces, is_special, strict=True)
        ],
        "is_special": is_special,
    }


def _text(piece: str, spells_bytes: bool) -> str:
    r"""What a piece stands for; "\xc3" for a byte that is no whole character."""
    from keras_attn.data.text.byte_pairs import get_bytes

    if spells_bytes:
        return get_bytes(piece).decode(errors="backslashreplace")
    return piece.replace("▁", " ")


def _print_cut(row: dict[str, Any]) -> None:
    """Prints a line about a tokenizer, and the text as it cuts it."""
    from rich.text import Text

    from keras_attn.viz.drawing.labels import visible

    count = f"{len(row['ids']):,}"
    if row["max_length"] is not None:
        count += f" of at most {row['max_length']:,}"
    say(
        f"{row['tokenizer']}: {row['kind']}, {row['vocabulary_size']:,} pieces, "
        f"{count} token{'s' * (count != '1')}",
        "bold",
    )
    texts = list(map(visible, row["texts"]))
    if not console.is_terminal or console.no_color:
        say(f"  {'│'.join(texts)}")
        return
    line = Text("  ")
    for number, (text, added) in enumerate(zip(texts, row["is_special"], strict=True)):
        color = f"black on {_COLORS[number % len(_COLORS)]}"
        line.append(text, _SPECIAL if added else color)
    console.print(line, soft_wrap=True)


def _print_table(rows: list[dict[str, Any]]) -> None:
    """Prints a line per token: its piece and its id, for each tokenizer."""
    from rich.cells import cell_len

    from keras_attn.viz.drawing.labels import visible

    length = max(len(row["ids"]) for row in rows)
    names = [row["tokenizer"] for row in rows]
    short = [
        Path(name).name for name in names
    ]  # Columns as wide as tokens, if it can be.
    if len(set(short)) == len(names):
        names = short
    columns = [["", *map(str, range(length))]]
    for name, row in zip(names, rows, strict=True):
        rest = [""] * (length - len(row["ids"]))
        columns.append([name, *map(visible, row["pieces"]), *rest])
        columns.append(["", *map(str, row["ids"]), *rest])
    widths = [max(map(cell_len, column)) for column in columns]
    for cells in zip(*columns, strict=True):
        # A piece may be of wide characters, which take two columns of a terminal.
        padded = [
            cell + " " * (width - cell_len(cell))
            for cell, width in zip(cells, widths, strict=True)
        ]
        say("  ".join(padded).rstrip())

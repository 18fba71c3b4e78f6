"""`keras-attn search`: the pictures of a folder that fit a text, by a CLIP.

The index of a folder: `data/images/picture_index.py`; opening a CLIP:
`cli/pairs_model.py`.
"""

from pathlib import Path
from typing import Annotated

import typer

from keras_attn.cli.options import Panel
from keras_attn.cli.pairs_model import PairsModel, TokenizerOfPairs, open_pairs_model
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import console, counting, say

_OPTIONS, _INDEX = Panel(), Panel("Index")
# Files that are not pictures, with a line each.
_SHOWN = 10


def search(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder with pictures, also in subfolders, or a ZIP archive.",
            exists=True,
        ),
    ],
    text: Annotated[str, typer.Argument(help="What to search for; quote it.")],
    model: PairsModel,
    count: Annotated[
        int, _OPTIONS.count("Number of pictures to list, the most similar first.")
    ] = 5,
    tokenizer: TokenizerOfPairs = None,
    index: Annotated[
        Path | None,
        _INDEX.option(
            "File in which the embeddings of the pictures are kept. Default: "
            ".keras-attn-search.npz in FOLDER, or beside the ZIP archive.",
            dir_okay=False,
        ),
    ] = None,
    no_index: Annotated[
        bool, _INDEX.option("Embed all pictures, and keep nothing.", "--no-index")
    ] = False,
) -> None:
    """Search a folder of pictures by words.

    Prints the similarity and the path of the pictures that fit the text best. The first
    search reads all pictures; what the model computes from them is kept in an index, so
    that later ones read only new and changed pictures. A file that is not a picture is
    named and left out.

    CLIP was trained on captions: "a photo of a red heart" finds more than "heart".

    Example: keras-attn search photos "a photo of a red heart" --model
    checkpoints/clip
    """
    if not text.strip():
        raise ValueError(f"TEXT must not be empty. Received: {text!r}")
    if no_index and index is not None:
        raise typer.BadParameter("--no-index cannot be combined with --index.")
    with importing_tensorflow():
        from keras_attn import data, models

    clip, text_tokenizer = open_pairs_model(model, tokenizer)
    # Before the pictures, which take longer.
    (query,) = models.caption_encoder(clip, text_tokenizer)([text])
    file = None if no_index else index or data.default_index_file(folder)
    with counting("Reading pictures") as on_progress:
        found = data.index_pictures(
            folder, models.picture_encoder(clip), file, on_progress=on_progress
        )
    for number, (name, reason) in enumerate(found.skipped.items()):
        if number == _SHOWN:
            say(f"left out {len(found.skipped) - _SHOWN:,} more", "yellow")
            break
        say(f"left out {_printable(name)}: {_printable(reason)}", "yellow")
    for line in found.notes:
        say(_printable(line), "yellow")
    for name, score in found.search(query, count):
        say(f"{score:.3f}  {_printable(str(folder / name))}")
    if console.is_terminal:
        say(f"{len(found)} pictures, {found.num_embedded} of them read now", "dim")


def _printable(name: str) -> str:
    """A name whose bytes may not be UTF-8."""
    return name.encode(errors="replace").decode()

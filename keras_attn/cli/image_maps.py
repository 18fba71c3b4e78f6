"""What a model attends to in an image: heads over the image, or a captioner's words.

Scores: `layers/capture.py`; plots: `viz/images.py`, `viz/questions.py`; the page of a
caption: `viz/image_page.py`.

Legend: H and W pixels, C channels, T tokens, S locations, h and w their rows and
columns.
"""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_attn.cli.opened_model import OpenedModel, noting_warnings
from keras_attn.cli.printed_text import TokenStream
from keras_attn.cli.samples import NORMALIZATIONS
from keras_attn.cli.terminal import note

if TYPE_CHECKING:
    import numpy as np

_MAX_WORDS = 64  # Tokens of a caption.
_MAX_TITLE = 150  # Characters above a row of seven images.
_MAX_SIDE = 1024  # Pixels of a photo that is drawn.


class _Photo(NamedTuple):
    """An image as it is drawn and as the model sees it.

    Attributes:
        shares: (h, w, C) in [0, 1], in the proportions of the file.
        box: The part of it that the model sees, or None for all of it.
        prepared: (H, W, C), an input of the model.
    """

    shares: "np.ndarray"
    box: tuple[float, ...] | None
    prepared: "np.ndarray"


def check_numbers(option: str, numbers: list[int] | None, count: int) -> None:
    """Raises unless an option's numbers of layers or heads are below a count.

    Args:
        option: The option, for the message.
        numbers: What was given.
        count: How many layers or heads there are.

    Raises:
        ValueError: If one is not.
    """
    for number in numbers or ():
        if not 0 <= number < count:
            raise ValueError(
                f"{option} must be from 0 to {count - 1} for this model. "
                f"Received: {option} {number}"
            )


def _read_image(
    file: Path, shape: tuple[int | None, ...], opened: OpenedModel, pixels: str | None
) -> _Photo:
    """The image of a file, prepared for a model of images (H, W, C).

    By the preprocessing of the model; without one, or with `pixels`, images are resized
    to its input and normalized as `pixels` says, or to [-1, 1].
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
    picture = Image.fromarray(image.squeeze(-1) if channels == 1 else image)
    fields = getattr(opened.model, "preprocessing", None)
    if fields is not None and pixels is None:
        layer = image_preprocessing(fields)
        prepared = np.asarray(layer(image[None]))[0]
        sides = zip((height, width), prepared.shape, strict=False)
        if any(side not in (None, found) for side, found in sides):
            raise ValueError(
                "MODEL must have a preprocessing that gives images of its input's size "
                f"for --image. Received: {prepared.shape[:2]}, for {(height, width)}"
            )
        shares = _for_drawing(picture, channels)
        return _Photo(shares, layer.visible_box(*shares.shape[:2]), prepared)
    shares = _for_drawing(picture, channels)
    if height and width:
        image = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))
        image = image.reshape(height, width, channels)
    mean, deviation = NORMALIZATIONS[pixels or "signed"]
    normalized = (image / 255 - np.asarray(mean)) / np.asarray(deviation)
    return _Photo(shares, None, normalized.astype("float32"))


def _for_drawing(picture: Any, channels: int) -> "np.ndarray":
    """A picture of Pillow in [0, 1], (h, w, C), smaller if it is very large."""
    import numpy as np

    picture = picture.copy()
    picture.thumbnail((_MAX_SIDE, _MAX_SIDE))
    shape = (picture.height, picture.width, channels)
    return (np.asarray(picture).reshape(shape) / 255).astype("float32")


def draw_image(
    opened: OpenedModel,
    file: Path,
    rollout: bool,
    layers: list[int] | None,
    heads: list[int] | None,
    pixels: str | None,
    output: Path,
) -> str:
    """Writes the maps over the image, as a figure or a page; returns what they are.

    Args:
        opened: An image model.
        file: The image.
        rollout: Whether to draw one map for all layers.
        layers: Numbers of layers; None = the last.
        heads: Numbers of heads; None = all.
        pixels: The value range of images, if not as the model says.
        output: The file to write.

    Raises:
        ValueError: If the model or the file is no image model or image, or a number is
            out of range.
    """
    import numpy as np

    from keras_attn import viz

    shape = getattr(opened.inputs, "shape", ())
    if len(shape) != 4:
        raise ValueError(
            "MODEL must be an image model for --image; pass TEXT to a text model. "
            f"Received: {str(opened.path)!r}"
        )
    photo = _read_image(file, shape[1:], opened, pixels)
    images = photo.prepared[None]
    if rollout:
        try:
            maps = viz.image_rollout(opened.model, images)
        except ValueError as error:
            if "for a rollout" not in str(error):
                raise
            raise ValueError(
                "--rollout needs a model whose layers all attend over the whole "
                "image, such as a ViT; leave it out for windowed models such as Swin. "
                f"Received: {str(opened.path)!r}"
            ) from error
        drawn = "Attention rollout"
        _write_maps(photo, maps[0], ["rollout"], drawn, None, output)
        return drawn
    maps = viz.image_attention(opened.model, images)
    paths = list(maps)
    check_numbers("--layer", layers, len(paths))
    chosen = [paths[index] for index in sorted(set(layers or [len(paths) - 1]))]
    panels, labels = [], []
    for path in chosen:
        count = maps[path].shape[1]
        check_numbers("--head", heads, count)
        for head in sorted(set(heads or range(count))):
            panels.append(_resize_map(maps[path][0, head], maps[chosen[0]].shape[2:]))
            prefix = f"layer {paths.index(path)}, " * (len(chosen) > 1)
            labels.append(f"{prefix}head {head}")
    drawn = f"Attention of {', '.join(chosen)}"
    title = chosen[0] if len(chosen) == 1 else None  # A figure has one line for it.
    _write_maps(photo, np.stack(panels), labels, drawn, title, output)
    return drawn


def _write_maps(
    photo: _Photo,
    maps: "np.ndarray",
    labels: list[str],
    drawn: str,
    title: str | None,
    output: Path,
) -> None:
    """Writes a page with the title `drawn`, or a figure with `title`."""
    from keras_attn import viz
    from keras_attn.files.writing import write_atomically

    if output.suffix.lower() == ".html":
        page = viz.image_attention_page(
            photo.shares, maps, labels=labels, title=drawn, box=photo.box
        )
        write_atomically(output, page.encode())
    else:
        figure = viz.plot_image_attention(
            photo.shares, maps, labels=labels, title=title, box=photo.box
        )
        viz.save_figure(figure, output)


def _resize_map(heat: "np.ndarray", shape: tuple[int, ...]) -> "np.ndarray":
    """Repeats the values of a coarser map from a later stage, up to a given shape."""
    import numpy as np

    rows, columns = (
        np.arange(size) * old // size
        for size, old in zip(shape, heat.shape, strict=True)
    )
    return heat[np.ix_(rows, columns)]


def is_captioner(opened: OpenedModel) -> bool:
    """Whether a model writes words about an image, or about features of one.

    Args:
        opened: The model.
    """
    names = opened.input_names
    return hasattr(opened.model, "incremental") and names in (
        {"images", "decoder_token_ids"},
        {"features", "decoder_token_ids"},
    )


def draw_caption(
    opened: OpenedModel,
    file: Path,
    tokenizer: Any,
    layers: list[int] | None,
    heads: list[int] | None,
    pixels: str | None,
    output: Path,
) -> tuple[str, str]:
    """Writes what a captioner looks at for each word of its caption.

    Args:
        opened: A captioner.
        file: The image.
        tokenizer: Of the captions.
        layers: Numbers of layers that attend to the image, of which the mean is drawn;
            None = all.
        heads: Numbers of their heads; None = all.
        pixels: The value range of images, if not as the model says.
        output: The picture, or the page if it ends in .html.

    Returns:
        The caption, and what is drawn.

    Raises:
        ValueError: If the model reads features, does not attend, or has a vocabulary
            that is not the tokenizer's; or a number is out of range.
    """
    import numpy as np

    from keras_attn import viz
    from keras_attn.files.writing import write_atomically

    if "images" not in opened.inputs:
        raise ValueError(
            "MODEL must read images for --image; this captioner reads features of a "
            "backbone: build it with `backbone=`, which becomes part of it. "
            f"Received: {str(opened.path)!r}"
        )
    photo = _read_image(file, opened.inputs["images"].shape[1:], opened, pixels)
    image = photo.prepared
    ids = _write_caption(opened, image, tokenizer)
    row = np.array([[tokenizer.start_token_id, *ids]], "int32")
    scores = viz.capture_attention(
        opened.model, {"images": image[None], "decoder_token_ids": row[:, :-1]}
    )
    scores = {path: x for path, x in scores.items() if _attends_to_image(path, scores)}
    paths = list(scores)
    check_numbers("--layer", layers, len(paths))
    chosen = [paths[index] for index in sorted(set(layers or range(len(paths))))]
    check_numbers("--head", heads, min(scores[path].shape[1] for path in chosen))
    weights = [
        scores[path][0][sorted(set(heads or range(scores[path].shape[1])))].mean(0)
        for path in chosen
    ]
    maps = _as_maps(np.mean(weights, axis=0), image.shape[:2], opened)
    words, maps = _join_pieces(tokenizer, ids, maps)
    caption = tokenizer.decode(ids)
    if output.suffix.lower() == ".html":
        page = viz.caption_page(photo.shares, words, maps, title=caption, box=photo.box)
        write_atomically(output, page.encode())
    else:
        title = textwrap.shorten(caption, _MAX_TITLE, placeholder=" …")
        with noting_warnings():
            figure = viz.plot_caption_attention(
                photo.shares, words, maps, title=title, box=photo.box
            )
            viz.save_figure(figure, output)
    if pixels is None and getattr(opened.model, "preprocessing", None) is None:
        note(
            "MODEL does not say in which range it takes images: they are normalized to "
            "[-1, 1]. For another range pass --pixels."
        )
    what = chosen[0] if len(chosen) == 1 else f"{len(chosen)} layers"
    return caption, f"Attention of {what} at each word"


def _write_caption(
    opened: OpenedModel, image: "np.ndarray", tokenizer: Any
) -> list[int]:
    """The tokens of the caption without its end token, greedily."""
    from keras_attn.decoding import generate

    size = opened.model.output
    size = (size["logits"] if isinstance(size, dict) else size).shape[-1]
    if tokenizer.vocabulary_size > size:
        raise ValueError(
            f"The tokenizer must be the one of MODEL, which has {size} tokens. "
            f"Received: a tokenizer of {tokenizer.vocabulary_size}"
        )
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    if start is None or end is None:
        raise ValueError(
            "The tokenizer must have a start and an end token for captions. "
            f"Received: start_token_id={start}, end_token_id={end}"
        )
    limit = getattr(opened.model, "max_length", None) or _MAX_WORDS + 1
    ids = generate(
        opened.model,
        {"images": image[None]},
        min(_MAX_WORDS, limit - 1),
        start_token_id=start,
        end_token_id=end,
    ).token_ids[0]
    ends = ids == end
    ids = ids[: ends.argmax()] if ends.any() else ids
    if not len(ids):
        raise ValueError(
            "MODEL must write a word to draw; its caption is empty. "
            f"Received: {str(opened.path)!r}"
        )
    return ids.tolist()


def _attends_to_image(path: str, scores: "dict[str, np.ndarray]") -> bool:
    """Whether a layer is one from words to the image, among those with scores.

    Besides it, a Transformer has those of the image and of the words to themselves.
    """
    is_crossed = any("cross_attention" in other for other in scores)
    return not is_crossed or "cross_attention" in path


def _as_maps(
    weights: "np.ndarray", size: tuple[int, ...], opened: OpenedModel
) -> "np.ndarray":
    """Weights (T, S) of locations as maps (T, h, w) of the image's proportions.

    A first location besides those of the grid is the class token's, and left out.
    """
    height, width = size
    for first in (0, 1):
        count = weights.shape[1] - first
        rows = max(1, round((count * height / width) ** 0.5))
        if rows * (count // rows) == count:
            return weights[:, first:].reshape(len(weights), rows, -1)
    raise ValueError(
        "MODEL must attend to a grid of locations in the proportions of its images. "
        f"Received: {str(opened.path)!r}, {weights.shape[1]} locations of {size} pixels"
    )


def _join_pieces(
    tokenizer: Any, ids: list[int], maps: "np.ndarray"
) -> "tuple[list[str], np.ndarray]":
    """The words of tokens and the mean map of each, or of each piece of one word."""
    import numpy as np

    stream = TokenStream(tokenizer, [])
    pieces = [stream.feed(token) for token in ids]
    starts, word = [0], ""
    for index, piece in enumerate(pieces):
        is_apart = piece[:1].isspace() or word[-1:].isspace()
        if word.strip() and is_apart:
            starts.append(index)
            word = ""
        word += piece
    if len(starts) < 2:
        starts = list(range(len(ids)))
    spans = list(zip(starts, [*starts[1:], len(ids)], strict=True))
    found = [("".join(pieces[a:b]).strip(), maps[a:b].mean(0)) for a, b in spans]
    # What is left is blank, such as a space at the end.
    words, joined = zip(*[each for each in found if each[0]] or found, strict=True)
    return list(words), np.stack(joined)

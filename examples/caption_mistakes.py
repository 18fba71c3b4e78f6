"""Captions that are wrong, and where the captioner looked (Xu et al. 2015, figure 5).

    python examples/shape_backbone.py
    python examples/caption_shapes.py
    python examples/caption_mistakes.py

Reads what `caption_shapes.py` keeps of each captioner that attends: the captions that
it wrote of images of one or two shapes, in combinations that are new to it, and its
attention at each word. For each captioner it draws the first dozen captions with a
wrong word: the word, the object that it should name, and where the captioner looked
when it wrote it (arXiv:1502.03044).

An object is named by three words: size, color and shape. Three words that are no
object of the image stand for the one that they share most words with, of those that no
other part of the caption names. An object that is left out has no wrong word, nor has
an object that is named and is not in the image.

The table has, for wrong words and for all other words that name an object, in images of
two, the share of attention inside of the object that is meant, and inside of the other
one: if a captioner is wrong because it looks at the other object, the latter is large.

Results for captioners of `caption_shapes.py`, 500 images, on an AMD EPYC (AVX-512, no
AMX): means of three seeds, and the smallest and the largest; of cnn_transformer one.

                            soft attention       hard attention       cnn_transformer
    wrong captions of 500   114 (84 to 142)      138 (116 to 170)     1
    attention inside its object
        right words         0.44 (0.41 to 0.49)  0.46 (0.45 to 0.47)  0.18
        wrong words         0.33 (0.30 to 0.35)  0.45 (0.44 to 0.47)  -
    inside the other object
        right words         0.23 (0.19 to 0.29)  0.44 (0.44 to 0.45)  0.09
        wrong words         0.37 (0.35 to 0.40)  0.46 (0.45 to 0.46)  -

With every seed soft attention that is wrong looks more at the other object, and less at
its own, than where it is right; wrong words are colors and shapes, few are sizes. Hard
attention looks at both objects alike, right or wrong: its maps do not tell why.
"""

import textwrap
from typing import NamedTuple

from keras_attn import script_arguments  # isort: split

import numpy as np
from matplotlib.figure import Figure

from keras_attn.data import Shapes
from keras_attn.metrics import attention_inside
from keras_attn.viz import plot_image_attention, save_figure

WORDS = Shapes()  # Whose sizes, colors and shapes are the words.
PARTS = ("size", "color", "shape")
ROWS, COLUMNS = 4, 3  # Of the picture.
WRONG, OBJECT = "#c0272d", "#19c3b2"


class Word(NamedTuple):
    """A word of a caption that names an object.

    Attributes:
        row: Number of the image.
        place: Of the word in the caption.
        part: 0, 1 or 2 for size, color and shape.
        said: The word.
        truth: The right word.
        number: Of the object in the image.
    """

    row: int
    place: int
    part: int
    said: str
    truth: str
    number: int


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/caption-shapes")
    return parser.parse_args()


def named_in(caption):
    """The objects that a caption names: place of the first word, and all three."""
    words = caption.split()
    kinds = (WORDS.sizes, WORDS.colors, WORDS.shapes)
    return [
        (place, triple)
        for place, triple in enumerate(zip(words, words[1:], words[2:], strict=False))
        if all(word in kind for word, kind in zip(triple, kinds, strict=True))
    ]


def words_of(row, caption, objects):
    """The words of a caption that name objects of the image, rightly or wrongly.

    Args:
        row: Number of the image.
        caption: The caption.
        objects: The size, color and shape of each object of the image.
    """
    left, unknown, pairs = [*range(len(objects))], [], []
    for place, triple in named_in(caption):
        same = [number for number in left if objects[number] == triple]
        if same:
            left.remove(same[0])
            pairs.append((place, triple, same[0]))
        else:
            unknown.append((place, triple))
    for place, triple in unknown:
        if left:
            alike = [sum(map(str.__eq__, triple, objects[number])) for number in left]
            pairs.append((place, triple, left.pop(int(np.argmax(alike)))))
    return [
        Word(row, place + part, part, triple[part], objects[number][part], number)
        for place, triple, number in pairs
        for part in range(len(PARTS))
    ]


def inside(words, kept):
    """Mean shares of attention: inside the object meant, and the other one.

    Args:
        words: List of `Word`.
        kept: The arrays of `caption_shapes.py`.

    Returns:
        Two shares, of words of images with two objects. NaN if there are none.
    """
    shares = []
    for is_other in (False, True):
        chosen = [
            (kept["attention"][each.row, each.place], mask)
            for each in words
            if kept["masks"][each.row].any((1, 2)).sum() == 2
            for number, mask in enumerate(kept["masks"][each.row])
            if (number != each.number) == is_other
        ]
        if not chosen:
            shares.append(np.nan)
            continue
        maps, masks = map(np.stack, zip(*chosen, strict=True))
        shares.append(
            float(np.mean(attention_inside(maps.astype("float32"), masks)[0]))
        )
    return shares


def plot_mistakes(words, kept, title):
    """A grid of wrong captions, each with its image and the attention at the word.

    Args:
        words: The wrong words that are drawn.
        kept: The arrays of `caption_shapes.py`.
        title: Title of the figure.
    """
    rows = -(-len(words) // COLUMNS)
    figure = Figure(figsize=(10.5, 2.25 * rows + 0.5), dpi=110, layout="compressed")
    axes = figure.subplots(rows, 2 * COLUMNS, squeeze=False)
    for axis in axes.ravel():
        axis.set_axis_off()
    for (left, right), word in zip(axes.reshape(-1, 2), words, strict=False):
        image = kept["images"][word.row]
        left.imshow(image)
        plot_image_attention(image, kept["attention"][word.row, word.place], ax=right)
        for axis in (left, right):
            axis.contour(kept["masks"][word.row, word.number], [0.5], colors=OBJECT)
        told = kept["captions"][word.row].split()
        told[word.place] = f"[{word.said}]"
        left.set_title(textwrap.fill(" ".join(told), 40), fontsize=8, loc="left")
        left.text(
            0,
            -0.03,
            f"“{word.said}” should be “{word.truth}”",
            transform=left.transAxes,
            va="top",
            fontsize=8,
            color=WRONG,
        )
    figure.suptitle(title, fontsize=10)
    return figure


def report(name, kept, folder):
    """Prints a row of the table, and draws the wrong captions.

    Args:
        name: Name of the captioner.
        kept: The arrays that `caption_shapes.py` wrote.
        folder: Folder for the picture.
    """
    words, num_wrong, first = [], 0, []
    for row, (caption, table) in enumerate(
        zip(kept["captions"], kept["objects"], strict=True)
    ):
        objects = [tuple(each) for each in table.tolist() if each[0]]
        found = words_of(row, str(caption), objects)
        named = [triple for _, triple in named_in(str(caption))]
        num_wrong += sorted(named) != sorted(objects)
        words += found
        first += [word for word in found if word.said != word.truth][:1]
    wrong = [word for word in words if word.said != word.truth]
    right = [word for word in words if word.said == word.truth]
    counts = [sum(word.part == part for word in wrong) for part in range(len(PARTS))]
    cells = [f"{num_wrong} of {len(kept['captions'])}", f"{len(first)}"]
    cells += [*map(str, counts)]
    cells += [
        f"{share:.2f}"
        for pair in zip(inside(right, kept), inside(wrong, kept), strict=True)
        for share in pair
    ]
    print(f"| {name} | {' | '.join(cells)} |")
    if first:
        shown = first[: ROWS * COLUMNS]
        title = (
            f"{name}: the first {len(shown)} captions with a wrong [word], the object "
            "that it should name (outlined), and where the captioner looked"
        )
        save_figure(plot_mistakes(shown, kept, title), folder / "mistakes.png")


def main():
    """Reports on every captioner in the folder."""
    arguments = parse_arguments()
    paths = sorted(arguments.run_dir.glob("*/new.npz"))
    if not paths:
        raise SystemExit(
            f"error: {arguments.run_dir} must have new.npz of captioners that attend: "
            "run caption_shapes.py first"
        )
    heads = ["captioner", "wrong captions", "by a word"]
    heads += [f"wrong {part}s" for part in PARTS]
    heads += [
        f"inside {which}, {kind} words"
        for which in ("its object", "the other")
        for kind in ("right", "wrong")
    ]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for path in paths:
        with np.load(path) as kept:
            report(path.parent.name, dict(kept), path.parent)
    print(f"Pictures: {arguments.run_dir}/*/mistakes.png")


if __name__ == "__main__":
    main()

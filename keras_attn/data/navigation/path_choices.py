"""Batches of instructions with paths, right and wrong ones, for VLN-BERT.

Legend: B batch, N options, T tokens, R regions, K classes; `PathRegions` has the
others.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive, check_several
from keras_attn.data.navigation.buildings import Walk
from keras_attn.data.navigation.path_regions import PathRegions
from keras_attn.data.navigation.r2r import WalkData, WalkExample
from keras_attn.data.pipelines.epochs import Epoch, epoch_seeds, row_indices
from keras_attn.data.text.text_tokenizer import TextTokenizer

_SUCCESS = 3.0  # Meters from the goal.
# Steps of a wrong path from its start, as in the authors' code.
_FEWEST_STEPS, _MOST_STEPS = 4, 6
_TRIES = 10

# An instruction, by its number, and a walk.
_Pair = tuple[int, Walk]


def path_choice_dataset(
    data: WalkData,
    paths: PathRegions,
    tokenizer: TextTokenizer,
    *,
    batch_size: int,
    candidates: Sequence[Sequence[Walk]] | None = None,
    num_options: int = 4,
    max_length: int = 60,
    seed: int = 0,
    shuffle: bool = False,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of instructions, each with one right path and wrong ones.

    With `candidates`, such as the beams of a follower, an option is one of them: the
    first is drawn from those that end less than 3 m from the goal, the others from
    those that do not. An instruction without enough of both is left out.

    Without, the options are made from the true path: the path itself; the path with a
    different instruction, which describes a different path; and paths that leave it at
    a random viewpoint and end after 4 to 6 steps, at least 3 m from the goal. Where no
    such path is found, the true path ends too early. An instruction whose start is
    less than 3 m from its goal is left out.

    Options are drawn anew in each epoch.

    Args:
        data: From `read_r2r`.
        paths: The regions along paths.
        tokenizer: Tokenizer of the instructions, such as a `WordPieceTokenizer`.
        batch_size: B, in instructions.
        candidates: For each instruction of `data`, walks from its start. None makes
            options from the true paths.
        num_options: N, at least 2.
        max_length: Maximum number of tokens of an instruction, special ones included,
            which are kept: the authors' code cuts the last one off.
        seed: Seed of the order and of the options.
        shuffle: Whether each epoch has a new random order.
        epoch: Number of the epoch, or a `tf.Variable` that holds it. None counts the
            iterations.
        drop_remainder: Whether the last batch is left out if it is smaller.

    Returns:
        A dataset of known cardinality: the inputs of VLN-BERT for B·N pairs of
        instruction and path, the N options of an instruction one after another; and
        labels int32 (B,), 0: the first option is the right one.

    Raises:
        ValueError: If a number is out of range, `candidates` are not one list for each
            instruction, a path does not fit `paths`, no instruction is left, or all
            instructions describe one path.

    Reference:
        Majumdar et al. 2020, section 4.2 (arXiv:2004.14973); the options: the authors'
        code.
    """
    count = check_several("num_options", num_options)
    if candidates is None:
        rows, draw = _made_options(data, count, paths.max_path_length)
    else:
        rows, draw = _drawn_options(data, candidates, count)
        for walks in candidates:
            paths.check(walks)
    if not rows:
        raise ValueError(
            "`data` must have at least one instruction with a right path and "
            f"{count - 1} wrong ones. Received: {len(data)} instructions without"
        )
    batches = _batches(
        draw,
        rows,
        data,
        paths,
        tokenizer,
        max_length,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )

    def labeled(inputs):
        num_rows = tf.shape(inputs["token_ids"])[0] // count
        return inputs, tf.zeros([num_rows], tf.int32)

    return batches.map(labeled).prefetch(tf.data.AUTOTUNE)


def path_pair_dataset(
    data: WalkData,
    paths: PathRegions,
    tokenizer: TextTokenizer,
    *,
    batch_size: int,
    max_length: int = 60,
    seed: int = 0,
    shuffle: bool = False,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of instructions with their true paths, for masked words and regions.

    Args:
        data: From `read_r2r`.
        paths: The regions along paths, with class distributions.
        tokenizer: Tokenizer of the instructions, such as a `WordPieceTokenizer`.
        batch_size: B.
        max_length: Maximum number of tokens of an instruction, special ones included.
        seed: Seed of the order.
        shuffle: Whether each epoch has a new random order.
        epoch: Number of the epoch, or a `tf.Variable` that holds it. None counts the
            iterations.
        drop_remainder: Whether the last batch is left out if it is smaller.

    Returns:
        A dataset of known cardinality, for `training.mask_pairs`: the inputs of
        VLN-BERT, and with them `class_distributions` float32 (B, R, K).

    Raises:
        ValueError: If a number is out of range, `data` has no examples, a path does not
            fit `paths`, or class distributions are missing.
    """
    if not len(data):
        raise ValueError("`data` must have at least one example. Received: none")
    batches = _batches(
        lambda row, _: [(row, _true_walk(data.examples[row]))],
        list(range(len(data))),
        data,
        paths,
        tokenizer,
        max_length,
        with_classes=True,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )
    return batches.prefetch(tf.data.AUTOTUNE)


def _batches(
    draw: Callable[[int, np.random.Generator], list[_Pair]],
    rows: list[int],
    data: WalkData,
    paths: PathRegions,
    tokenizer: TextTokenizer,
    max_length: int,
    *,
    with_classes: bool = False,
    batch_size: int,
    seed: int,
    shuffle: bool,
    epoch: Epoch,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Batches of the pairs that `draw` returns for each of the rows."""
    check_positive("batch_size", batch_size)
    texts = tokenizer.encode_batch(
        [each.instruction for each in data.examples], max_length=max_length
    )
    # Names, types and shapes; this also checks the paths before the first batch.
    true_walks = [_true_walk(data.examples[row]) for row in rows]
    example = texts | paths.encode(true_walks, class_distributions=with_classes)
    types = [tf.as_dtype(array.dtype) for array in example.values()]

    def load(chosen, numbers):
        pairs = []
        for index in chosen.tolist():
            # Independent of the size of the batch and of the other rows.
            random = np.random.default_rng([*numbers.astype("uint64").tolist(), index])
            pairs += draw(rows[index], random)
        told = [number for number, _ in pairs]
        longest = texts["padding_mask"][told].sum(1).max()
        walks = [walk for _, walk in pairs]
        inputs = {name: array[told, :longest] for name, array in texts.items()}
        inputs |= paths.encode(walks, class_distributions=with_classes)
        return [inputs[name] for name in example]

    def read(chosen, numbers):
        values = tf.numpy_function(load, [chosen, numbers], types)
        return {
            name: tf.ensure_shape(value, [None, None, *array.shape[2:]])
            for (name, array), value in zip(example.items(), values, strict=True)
        }

    indices = row_indices(len(rows), seed if shuffle else None, epoch)
    indices = indices.batch(batch_size, drop_remainder=drop_remainder)
    return tf.data.Dataset.zip(indices, epoch_seeds(seed, epoch)).map(read)


def _true_walk(example: WalkExample) -> Walk:
    """The walk along the path that an instruction describes."""
    return Walk(example.building, example.path, example.heading)


def _drawn_options(data, candidates, count):
    """Instructions with enough candidates, and a function that draws from them."""
    if len(candidates) != len(data):
        raise ValueError(
            "`candidates` must be one list of walks for each instruction of `data`. "
            f"Received: {len(candidates)} lists for {len(data)} instructions"
        )
    right, wrong = [], []
    for example, walks in zip(data.examples, candidates, strict=True):
        is_right = _succeed(walks, example)
        right.append([walk for walk, x in zip(walks, is_right, strict=True) if x])
        wrong.append([walk for walk, x in zip(walks, is_right, strict=True) if not x])
    rows = [
        row for row in range(len(data)) if right[row] and len(wrong[row]) >= count - 1
    ]

    def draw(row: int, random: np.random.Generator) -> list[_Pair]:
        first = right[row][random.integers(len(right[row]))]
        others = random.choice(len(wrong[row]), count - 1, replace=False)
        walks = [first, *(wrong[row][number] for number in others)]
        return [(row, walk) for walk in walks]

    return rows, draw


def _succeed(walks: Sequence[Walk], example: WalkExample) -> list[bool]:
    """Whether walks end less than 3 m from the goal of an example.

    Raises:
        ValueError: If a walk is in a different building.
    """
    distances = example.building.distances(example.path[-1])
    for walk in walks:
        if walk.building.viewpoints != example.building.viewpoints:
            raise ValueError(
                "`candidates` must be in the building of their instruction. Received: "
                f"a walk in {walk.building} for a path in {example.building}"
            )
    return [bool(distances[walk.path[-1]] < _SUCCESS) for walk in walks]


def _made_options(data, count, max_path_length):
    """Instructions whose goal is far enough, and a function that makes options."""
    walks = [_true_walk(each) for each in data.examples]
    if len(data) and len(set(walks)) < 2:
        raise ValueError(
            "`data` must describe at least two paths, so that an instruction can be "
            f"wrong. Received: {len(data)} instructions of one path"
        )
    rows = [
        row
        for row, each in enumerate(data.examples)
        if not _succeed([each.start], each)[0]
    ]

    def draw(row: int, random: np.random.Generator) -> list[_Pair]:
        other = row
        while walks[other] == walks[row]:
            other = int(random.integers(len(walks)))
        pairs = [(row, walks[row]), (other, walks[row])]
        while len(pairs) < count:
            path = _wrong_path(data.examples[row], random, max_path_length)
            pairs.append((row, Walk(walks[row].building, path, walks[row].heading)))
        return pairs

    return rows, draw


def _wrong_path(example: WalkExample, random, max_path_length) -> tuple[int, ...]:
    """A path that leaves the true one and ends at least 3 m from its goal."""
    neighbors, path = example.building.neighbors, example.path
    distances = example.building.distances(path[-1])
    most = min(_MOST_STEPS, max_path_length - 1)
    for _ in range(_TRIES):
        # It leaves at an inner viewpoint, if there is one.
        kept = int(random.integers(min(2, len(path) - 1), len(path)))
        found = list(path[:kept])
        fewest = min(max(_FEWEST_STEPS, kept), most)
        steps = int(random.integers(fewest, most + 1))
        while len(found) <= steps:
            taken = {*found, path[kept]} if len(found) == kept else {*found}
            ways = [each for each in neighbors[found[-1]] if each not in taken]
            if not ways:
                break
            found.append(ways[int(random.integers(len(ways)))])
        has_left = kept < len(found) == steps + 1
        if has_left and distances[found[-1]] >= _SUCCESS:
            return tuple(found)
    # Its start is far enough from the goal.
    ends = [n for n in range(1, len(path)) if distances[path[n - 1]] >= _SUCCESS]
    return path[: ends[int(random.integers(len(ends)))]]

"""Room-to-Room: instructions, and the paths through buildings that they describe.

The reader, its data and their batches share the checks of the format, so they are one
file of more than 400 lines.

Legend: B batch, S words, T steps, F features of the world.
"""

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive
from keras_attn.data.images.image_files import check_folder
from keras_attn.data.images.vqa import (
    WordVocabulary,
    encode_question,
    frequent_words,
    make_word_ids,
    split_words,
)
from keras_attn.data.navigation.buildings import Building, Walk, WalkSimulator
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.data.pipelines.epochs import Epoch, batches_of_rows
from keras_attn.files.reading import MIB, naming, read_json_list, shown

# The largest building has 349 viewpoints, each with three lists of 349 entries.
_MAX_BYTES = 256 * MIB
_MAX_ENTRIES = 20_000_000
_POSE = 16  # A matrix of 4 by 4, row by row; the position is its last column.


@dataclass(frozen=True)
class WalkExample:
    """An instruction, and the path that it describes.

    Attributes:
        path_id: Number of the path; several instructions describe one path.
        instruction: The text.
        building: Where the path is.
        path: Numbers of its viewpoints, from the start to the goal.
        heading: Where the walker looks at the start, in radians; see `buildings.py`.
    """

    path_id: int
    instruction: str
    building: Building
    path: tuple[int, ...]
    heading: float

    @property
    def start(self) -> Walk:
        """The walk before the first step."""
        return Walk(self.building, self.path[:1], self.heading)


@dataclass(frozen=True)
class WalkData(WordVocabulary):
    """Instructions with their paths.

    Attributes:
        examples: One for each instruction.
        words: The words that have an id: the i-th word has id i + 2; 0 is padding and 1
            any other word.
        skipped: What was left out, with reasons.
    """

    examples: list[WalkExample]
    words: list[str]
    skipped: Skipped = field(default_factory=partial(Skipped, "raise"))

    def __len__(self) -> int:
        return len(self.examples)

    def encode(self, instructions: Iterable[str]) -> dict[str, np.ndarray]:
        """The words of instructions as inputs of a model.

        Args:
            instructions: B texts.

        Returns:
            `token_ids` and `padding_mask`, int32 (B, S), padded at the right.

        Raises:
            ValueError: If `instructions` is a single text, or if an instruction has no
                words.
        """
        if isinstance(instructions, str):
            raise ValueError(
                "`instructions` must be a list of texts; pass a list of one. "
                f"Received: instructions={shown(instructions)}"
            )
        instructions = list(instructions)
        for text in instructions:
            if not isinstance(text, str) or not split_words(text):
                raise ValueError(
                    "`instructions` must be texts of at least one word. "
                    f"Received: {shown(text)}"
                )
        ids = make_word_ids(self.words)
        rows = [encode_question(text, ids, "token") for text in instructions]
        longest = max(map(len, rows), default=0)
        token_ids = keras.utils.pad_sequences(rows, longest, padding="post")
        return {"token_ids": token_ids, "padding_mask": (token_ids > 0).astype("int32")}

    def simulator(
        self, num_sectors: int = 16, *, look_ahead: bool = False, odometry: bool = False
    ) -> WalkSimulator:
        """The walks of all examples before the first step.

        Args:
            num_sectors: K, the number of sectors around a viewpoint.
            look_ahead: Whether each sector also has the number of ways at the viewpoint
                there.
            odometry: Whether the world state ends in the heading relative to the start,
                the steps and the distance so far.
        """
        return WalkSimulator(
            [each.start for each in self.examples],
            num_sectors,
            look_ahead=look_ahead,
            odometry=odometry,
        )


def read_building(path: str | os.PathLike) -> Building:
    """Reads the connectivity graph of one building of Matterport3D.

    Viewpoints that are not `included` are left out, and so are their ways.

    Args:
        path: The file `<scan>_connectivity.json`.

    Raises:
        FileNotFoundError: If it does not exist.
        ValueError: If it is not a valid connectivity graph; the message names the bad
            entry.
    """
    path = Path(path)
    entries = read_json_list(path, _MAX_BYTES, _MAX_ENTRIES)
    for index, entry in enumerate(entries):
        _check_viewpoint(entry, len(entries), f"{path.name}, entry {index}")
    kept = [index for index, entry in enumerate(entries) if entry["included"]]
    numbers = {index: number for number, index in enumerate(kept)}
    names = [entries[index]["image_id"] for index in kept]
    if not kept or len(set(names)) != len(names):
        raise ValueError(
            f"{path.name} must have included viewpoints, each with a unique "
            f"`image_id`. Received: {str(path)!r}, with {len(names)} viewpoints of "
            f"{len(set(names))} names"
        )
    return Building(
        path.name.removesuffix("_connectivity.json"),
        names,
        [entries[index]["pose"][3:12:4] for index in kept],
        [
            (numbers[index], numbers[other])
            for index in kept
            for other, is_open in enumerate(entries[index]["unobstructed"])
            if is_open and other in numbers and other != index
        ],
    )


def read_r2r(
    annotations: str | os.PathLike,
    connectivity_folder: str | os.PathLike,
    *,
    words: Sequence[str] | None = None,
    min_word_count: int = 1,
    on_error: str = "raise",
) -> WalkData:
    """Reads the instructions of a split of Room-to-Room, and their buildings.

    Args:
        annotations: The JSON file of a split, such as `R2R_train.json`.
        connectivity_folder: The folder with `<scan>_connectivity.json` for each
            building.
        words: The words that get ids, such as `train.words` for a validation split.
            None takes the words of these instructions, the most frequent first.
        min_word_count: How often a word must occur to get an id, if `words` is None.
        on_error: "raise" refuses a bad path. "skip" leaves it out; a warning counts
            them, `data.skipped` lists them.

    Returns:
        The data set, with one example for each instruction.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is not valid JSON of this format; if a path has no
            instructions, an instruction without words, a viewpoint that its building
            lacks, or a step that is not a way of the building; if no path is left; or
            if `words` is a single string or has duplicates.

    Example:
        Needs the files of Room-to-Room:

        ```python
        from keras_attn import data

        train = data.read_r2r("r2r/R2R_train.json", "r2r/connectivity")
        unseen = data.read_r2r(
            "r2r/R2R_val_unseen.json", "r2r/connectivity", words=train.words
        )
        ```

    Reference:
        Anderson et al. 2018, "Vision-and-Language Navigation: Interpreting
        visually-grounded navigation instructions in real environments"
        (arXiv:1711.07280).
    """
    skipped = Skipped(on_error)
    check_positive("min_word_count", min_word_count)
    if words is not None and (isinstance(words, str) or len(set(words)) != len(words)):
        raise ValueError(
            f"`words` must be a list of different words. Received: words={shown(words)}"
        )
    path = Path(annotations)
    folder = check_folder("connectivity_folder", connectivity_folder)
    buildings: dict[str, Building] = {}
    examples = []
    for index, entry in enumerate(read_json_list(path, _MAX_BYTES, _MAX_ENTRIES)):
        label = f"{path.name}, entry {index}"
        with skipped.collecting(label):
            examples += _examples(entry, folder, buildings, label)
    if not examples:
        reason = next(iter(skipped.values()), "it has no path")
        raise ValueError(
            f"{path.name} must have paths that can be used. "
            f"Received: annotations={str(path)!r}, {len(skipped)} left out; {reason}"
        )
    if words is None:
        words = frequent_words((each.instruction for each in examples), min_word_count)
    skipped.report(f"Room-to-Room in {str(path)!r}")
    return WalkData(examples, list(words), skipped)


def walk_dataset(
    data: WalkData,
    *,
    batch_size: int,
    num_sectors: int = 16,
    look_ahead: bool = False,
    odometry: bool = False,
    max_words: int | None = None,
    seed: int = 0,
    shuffle: bool = False,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of instructions and the worlds on their paths, for `model.fit`.

    The model sees the worlds on the true path, not on the path of its own predictions.

    Args:
        data: From `read_r2r`.
        batch_size: B.
        num_sectors: K, the number of sectors around a viewpoint.
        look_ahead: Whether each sector also has the number of ways at the viewpoint
            there.
        odometry: Whether the world state ends in the heading relative to the start, the
            steps and the distance so far.
        max_words: The end of a longer instruction is cut off. None keeps all words.
        seed: Seed of the order.
        shuffle: Whether each epoch has a new random order.
        epoch: Number of the epoch, or a `tf.Variable` that holds it. None counts the
            iterations.
        drop_remainder: Whether the last batch is left out if it is smaller.

    Returns:
        A dataset of known cardinality: a dictionary of `token_ids` and `padding_mask`
        int32 (B, S) and `world_state` float32 (B, T, F); the actions, int32 (B, T);
        and sample weights float32 (B, T), 1 on the actions of a path and 0 after its
        end. S and T are the lengths of the longest rows of the batch.

    Raises:
        ValueError: If an argument is out of range, `data` has no examples, or a
            viewpoint has more neighbors than there are sectors.
    """
    check_positive("batch_size", batch_size)
    if not len(data):
        raise ValueError("`data` must have at least one example. Received: none")
    token_ids = data.encode(each.instruction for each in data.examples)["token_ids"]
    if max_words is not None:
        token_ids = token_ids[:, : check_positive("max_words", max_words)]
    simulator = data.simulator(num_sectors, look_ahead=look_ahead, odometry=odometry)
    # Several instructions describe one path.
    starts = {(each.start, each.path): row for row, each in enumerate(data.examples)}
    numbers = {key: number for number, key in enumerate(starts)}
    paths = [numbers[each.start, each.path] for each in data.examples]
    followed = [simulator.follow(walk, path) for walk, path in starts]
    lengths = np.array([len(actions) for _, actions in followed])
    worlds = np.zeros((len(followed), lengths.max(), simulator.world_dim), "float32")
    actions = np.full(worlds.shape[:2], simulator.stop_action, "int32")
    for row, (states, chosen) in enumerate(followed):
        worlds[row, : len(chosen)] = states
        actions[row, : len(chosen)] = chosen

    def load(rows):
        words = tf.gather(token_ids, rows)
        longest = tf.reduce_max(tf.math.count_nonzero(words, axis=1))
        words = words[:, :longest]
        path = tf.gather(tf.constant(paths), rows)
        steps = tf.gather(tf.constant(lengths), path)
        most = tf.reduce_max(steps)
        inputs = {
            "token_ids": words,
            "padding_mask": tf.cast(words > 0, tf.int32),
            "world_state": tf.gather(worlds, path)[:, :most],
        }
        weights = tf.sequence_mask(steps, most, tf.float32)
        return inputs, tf.gather(actions, path)[:, :most], weights

    return batches_of_rows(
        len(data),
        load,
        batch_size=batch_size,
        shuffle_seed=seed if shuffle else None,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def _check_viewpoint(entry, count: int, label: str) -> None:
    """Checks one viewpoint of a connectivity graph of `count` entries."""
    if not isinstance(entry, dict):
        raise ValueError(f"{label} must be an object. Received: {shown(entry)}")
    if not isinstance(entry.get("image_id"), str):
        raise ValueError(
            f"{label} must have a text as `image_id`. "
            f"Received: image_id={shown(entry.get('image_id'))}"
        )
    if not isinstance(entry.get("included"), bool):
        raise ValueError(
            f"{label} must have true or false as `included`. "
            f"Received: included={shown(entry.get('included'))}"
        )
    pose: Any = entry.get("pose")
    is_pose = isinstance(pose, list) and len(pose) == _POSE
    if not is_pose or not all(map(_is_number, pose)):
        raise ValueError(
            f"{label} must have {_POSE} finite numbers as `pose`. "
            f"Received: pose={shown(pose)}"
        )
    ways: Any = entry.get("unobstructed")
    is_list = isinstance(ways, list) and len(ways) == count
    if not is_list or not all(isinstance(each, bool) for each in ways):
        raise ValueError(
            f"{label} must have {count} of true or false as `unobstructed`, one for "
            f"each entry of the file. Received: unobstructed={shown(ways)}"
        )


def _examples(entry, folder: Path, buildings: dict, label: str) -> list[WalkExample]:
    """The examples of one path, one for each instruction."""
    if not isinstance(entry, dict):
        raise ValueError(f"{label} must be an object. Received: {shown(entry)}")
    number: Any = entry.get("path_id")
    scan: Any = entry.get("scan")
    heading: Any = entry.get("heading")
    # A name of letters and digits does not lead out of the folder.
    is_name = isinstance(scan, str) and re.fullmatch(r"\w+", scan)
    if type(number) is not int or not is_name or not _is_number(heading):
        raise ValueError(
            f"{label} must have an integer as `path_id`, letters and digits as `scan` "
            f"and a finite number as `heading`. Received: path_id={shown(number)}, "
            f"scan={shown(scan)}, heading={shown(heading)}"
        )
    label = f"{label}, path {number}"
    if scan not in buildings:
        buildings[scan] = read_building(folder / f"{scan}_connectivity.json")
    building = buildings[scan]
    return [
        WalkExample(number, text, building, _path(entry, building, label), heading)
        for text in _instructions(entry, label)
    ]


def _instructions(entry: dict, label: str) -> list[str]:
    texts: Any = entry.get("instructions")
    if not isinstance(texts, list) or not texts:
        raise ValueError(
            f"{label} must have a list of `instructions`, at least one. "
            f"Received: instructions={shown(texts)}"
        )
    for text in texts:
        if not isinstance(text, str) or not split_words(text):
            raise ValueError(
                f"{label} must have instructions of at least one word. "
                f"Received: {shown(text)}"
            )
    return texts


def _path(entry: dict, building: Building, label: str) -> tuple[int, ...]:
    """The viewpoint numbers of a path, each a neighbor of the previous one."""
    names: Any = entry.get("path")
    is_list = isinstance(names, list) and bool(names)
    if not is_list or not all(isinstance(each, str) for each in names):
        raise ValueError(
            f"{label} must have a list of viewpoints as `path`, at least one. "
            f"Received: path={shown(names)}"
        )
    with naming(label):
        path = tuple(map(building.number, names))
    if not np.isfinite(building.distances(path[-1])[path[0]]):
        raise ValueError(
            f"{label} must have a goal that can be reached from its start in building "
            f"{building.name!r}. Received: start={names[0]!r}, goal={names[-1]!r}"
        )
    for here, there in zip(path, path[1:], strict=False):
        if there not in building.neighbors[here]:
            raise ValueError(
                f"{label} must go from neighbor to neighbor in building "
                f"{building.name!r}. Received: a step from "
                f"{building.viewpoints[here]!r} to {building.viewpoints[there]!r}"
            )
    return path


def _is_number(value) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A file can contain integers of any size.
    return is_number and abs(value) < 1e9 and math.isfinite(value)

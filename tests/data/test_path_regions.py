"""Paths as regions, and batches of instructions with right and wrong paths."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from refusals import refuses
from walk_cases import write_r2r

from keras_attn.data import (
    Building,
    PathRegions,
    ViewpointRegions,
    Walk,
    WordPieceTokenizer,
    path_choice_dataset,
    path_pair_dataset,
    read_r2r,
    way_regions,
)

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] turn right and go up the stairs . , walk down"
PIECES += " then straight on past way north stop !"


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    return read_r2r(*write_r2r(tmp_path_factory.mktemp("r2r")))


@pytest.fixture(scope="module")
def house(train):
    return train.examples[0].building


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(PIECES.split())


def regions(count=2, seed=0, width=3, classes=5):
    """Random regions of one viewpoint."""
    rng = np.random.default_rng(seed)
    shares = rng.random((count, classes)) + 0.1
    corners = rng.uniform(0, 0.4, (count, 2))
    return ViewpointRegions(
        rng.normal(size=(count, width)),
        np.concatenate([corners, corners + rng.uniform(0.1, 0.5, (count, 2))], 1),
        rng.uniform(-3, 3, count),
        rng.uniform(-1, 1, count),
        shares / shares.sum(1, keepdims=True) if classes else None,
    )


@pytest.fixture(scope="module")
def seen():
    """Regions of the six viewpoints of the house, none at the first."""
    return [regions(number, number) for number in range(6)]


@pytest.fixture(scope="module")
def paths(seen):
    return PathRegions({"house": seen})


def test_the_regions_along_a_path(house, seen, paths):
    """Majumdar's numbers, written out: west from g0 to g2, back, and east to g1."""
    walk = Walk(house, (1, 0, 2), 0.3)
    encoded = paths.encode([walk, Walk(house, (0,), 0.3)], class_distributions=True)
    sizes = [1 + len(seen[number].features) for number in walk.path]
    assert sizes == [2, 1, 3]
    # The walker came along -x twice, to the west.
    headings = [0.3, -math.pi / 2, -math.pi / 2]
    following = [-math.pi / 2] * 3
    row = 0
    for index, number in enumerate(walk.path):
        found = seen[number]
        for region in range(sizes[index]):
            got = {name: array[0, row] for name, array in encoded.items()}
            assert got["viewpoint_ids"] == index
            assert got["region_padding_mask"] == 1
            if region:
                box, h, e = (
                    array[region - 1]
                    for array in (found.boxes, found.headings, found.elevations)
                )
                features = found.features[region - 1]
                shares = found.class_distributions[region - 1]
            else:
                box, h, e, shares = [0, 0, 1, 1], 0, 0, [0.2] * 5
                mean = found.features.mean(0) if len(found.features) else [0] * 3
                features = mean
            np.testing.assert_allclose(got["region_features"], features, rtol=1e-6)
            np.testing.assert_allclose(got["region_boxes"], box, rtol=1e-6)
            np.testing.assert_allclose(got["class_distributions"], shares, rtol=1e-6)
            angles = [h - headings[index], e, h - following[index]]
            np.testing.assert_allclose(got["region_angles"], angles, rtol=1e-5)
            row += 1
    assert row == encoded["region_features"].shape[1]
    for name, array in encoded.items():
        assert array.dtype == ("int32" if "i" in array.dtype.kind else "float32")
        assert not array[1, 1:].any(), name
    assert encoded["region_padding_mask"].sum(1).tolist() == [6, 1]


def test_the_heading_before_the_first_step_counts(house, paths):
    """Not the heading at the end of a walk that was followed."""
    one = Walk(house, (1, 0), 0.3)
    walked = Walk(house, (1, 0), -1.5, is_done=True, start_heading=0.3)
    for name, array in paths.encode([one]).items():
        np.testing.assert_array_equal(array, paths.encode([walked])[name], name)


def test_the_first_regions_are_kept(house, seen):
    few = PathRegions({"house": seen}, max_regions=3)
    encoded = few.encode([Walk(house, (4,), 0.0)])
    features = seen[4].features[:2]
    np.testing.assert_allclose(encoded["region_features"][0, 1:], features)
    mean = encoded["region_features"][0, 0]
    np.testing.assert_allclose(mean, features.mean(0), rtol=1e-6)
    only = PathRegions({"house": seen}, max_regions=1)
    assert only.encode([Walk(house, (4,), 0.0)])["region_features"].shape == (1, 1, 3)


def test_ways_are_regions(house):
    found: Any = way_regions(house)
    assert [len(each.features) for each in found] == [3, 2, 1, 1, 1, 0]
    east, west, north = range(3)
    # g0: to g1 at 4 m with 2 ways, to g2 at 2 m and g3 at 3 m with 1 each.
    features = [[0.8, 0, 0.4], [0.4, 0, 0.2], [0.6, 0, 0.2]]
    np.testing.assert_allclose(found[0].features, features, rtol=1e-6)
    np.testing.assert_allclose(found[0].headings, [math.pi / 2, -math.pi / 2, 0])
    np.testing.assert_array_equal(found[0].class_distributions.argmax(1), [1, 0, 0])
    for way, middle in ((east, 0.75), (west, 0.25), (north, 0.5)):
        box = [middle - 1 / 32, 15 / 32, middle + 1 / 32, 17 / 32]
        np.testing.assert_allclose(found[0].boxes[way], box, rtol=1e-6)
    # From g1 up to s: 3 m to the south, 3 m up. Half of the box is cut off.
    stairs = found[1].headings.argmax()
    np.testing.assert_allclose(abs(found[1].headings[stairs]), math.pi)
    np.testing.assert_allclose(found[1].elevations[stairs], math.pi / 4)
    np.testing.assert_allclose(found[1].boxes[stairs], [31 / 32, 7 / 32, 1, 9 / 32])
    assert PathRegions({"house": found}).num_classes == 8


def test_many_ways_are_one_class():
    count = 12
    positions = [(0, 0, 0), *((math.cos(a), math.sin(a), 0) for a in range(count))]
    edges = [(0, number) for number in range(1, count + 1)]
    hub = Building("hub", [str(n) for n in range(count + 1)], positions, edges)
    found: Any = way_regions(hub)
    assert found[1].class_distributions.argmax() == 7


BAD = {
    "features": (np.full((2, 3), np.nan), "`features` must be finite numbers"),
    "boxes": (np.zeros((3, 4)), r"`boxes` must be finite .* shape \(2, 4\)"),
    "headings": (np.zeros((2, 1)), r"`headings` must be finite .* shape \(2,\)"),
    "elevations": (np.zeros(1), r"`elevations` must be finite .* shape \(2,\)"),
    "class_distributions": (np.ones((2, 3)), "sum to 1.*region 0 with the sum 3"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_regions_are_refused(name):
    value, message = BAD[name]
    refuses(message, replace, regions(), **{name: value})


def test_bad_boxes_and_shares_are_refused():
    for box in ([0.5, 0, 0.5, 1], [0, 0.2, 1, 0.1], [0, 0, 30, 1], [-1, 0, 1, 1]):
        with pytest.raises(ValueError, match="`boxes` must have left < right.*box 1"):
            replace(regions(), boxes=np.array([[0, 0, 1, 1], box]))
    with pytest.raises(ValueError, match="`class_distributions` must be prob"):
        replace(regions(), class_distributions=np.array([[1.5, -0.5], [0.5, 0.5]]))


def test_bad_collections_are_refused(seen):
    refuses("`regions`.*no viewpoint", PathRegions, {})
    for other in (regions(width=4), regions(classes=0)):
        with pytest.raises(ValueError, match="`regions` must have the same number"):
            PathRegions({"house": [*seen, other]})
    for name in ("max_regions", "max_path_length"):
        refuses(f"`{name}`", PathRegions, {"house": seen}, **{name: 0})


def test_walks_that_do_not_fit_are_refused(house, seen, paths):
    other = Building("shed", ["a"], [(0, 0, 0)], [])
    few = PathRegions({"house": seen[:5]})
    for collection, walk, message in (
        (paths, Walk(house, (0, 4), 0.0), "`walks` must go from neighbor to neighbor"),
        (paths, Walk(house, (0, 1) * 4 + (0,), 0.0), "from 1 to 8 view.*walk of 9"),
        (paths, Walk(house, (), 0.0), "from 1 to 8 viewpoints.*walk of 0"),
        (paths, Walk(other, (0,), 0.0), "`regions` must have the 1 .*'shed'.* 0"),
        (few, Walk(house, (0,), 0.0), "the 6 viewpoints.*Received: 5"),
    ):
        refuses(message, collection.encode, [walk])
    for path in ((0, 6), (-1,), (1, 0, 7)):
        refuses("`walks` must go.*6 viewpoints", paths.check, [Walk(house, path, 0.0)])
    bare = PathRegions({"house": [regions(classes=0)] * 6})
    walks, message = [Walk(house, (0,), 0.0)], "`class_distributions` needs regions"
    refuses(message, bare.encode, walks, class_distributions=True)
    assert bare.encode([])["region_features"].shape[0] == 0


def choices(train, paths, tokenizer, **options):
    arguments = {"batch_size": 3, **options}
    return path_choice_dataset(train, paths, tokenizer, **arguments)


def first_of(dataset):
    inputs, labels = next(iter(dataset))
    return {name: value.numpy() for name, value in inputs.items()}, labels.numpy()


def test_options_are_made_from_true_paths(train, house, paths, tokenizer):
    dataset = choices(train, paths, tokenizer, num_options=5, epoch=0)
    assert len(dataset) == 2
    inputs, labels = first_of(dataset)
    np.testing.assert_array_equal(labels, [0, 0, 0])
    assert all(len(value) == 15 for value in inputs.values())
    spec: Any = dataset.element_spec
    assert spec[0]["region_features"].shape == (None, None, 3)
    true = paths.encode([Walk(x.building, x.path, x.heading) for x in train.examples])
    texts = tokenizer.encode_batch([x.instruction for x in train.examples])
    for row in range(3):
        options = {name: value[5 * row : 5 * row + 5] for name, value in inputs.items()}
        count = true["region_padding_mask"][row].sum()
        features = options["region_features"]
        # The first two are the true path, and all but the second have its text.
        for option in range(5):
            same = np.array_equal(
                features[option, :count], true["region_features"][row, :count]
            )
            told = np.trim_zeros(options["token_ids"][option])
            is_told = np.array_equal(told, np.trim_zeros(texts["token_ids"][row]))
            assert same or option > 1
            assert is_told == (option != 1)
        others = options["region_padding_mask"][2:].sum(1)
        assert (others > 0).all()


def test_made_paths_are_wrong(train, house, paths, tokenizer):
    """They begin at the start, follow ways, and end far from the goal."""
    drawn = []
    collect = PathRegions({"house": way_regions(house)})
    encode = collect.encode
    collect.encode = lambda walks, **options: (
        drawn.append(list(walks)),
        encode(walks, **options),
    )[1]
    dataset = choices(train, collect, tokenizer, batch_size=4)
    drawn.clear()
    for _ in range(5):
        list(dataset)
    assert len(drawn) == 5
    for walks in drawn:
        for row, example in enumerate(train.examples):
            distances = house.distances(example.path[-1])
            options = walks[4 * row : 4 * row + 4]
            assert all(walk.heading == example.heading for walk in options)
            assert options[0].path == options[1].path == example.path
            for walk in options[2:]:
                assert walk.path[0] == example.path[0]
                assert distances[walk.path[-1]] >= 3
                assert len(set(walk.path)) == len(walk.path)
    assert len({walks[3].path for walks in drawn}) > 1


def grid(side=5):
    """A square of viewpoints 2 m apart, each with a way to its neighbors."""
    numbers = np.arange(side * side).reshape(side, side)
    edges: Any = [*zip(numbers[:, :-1].ravel(), numbers[:, 1:].ravel(), strict=True)]
    edges += zip(numbers[:-1].ravel(), numbers[1:].ravel(), strict=True)
    positions = [(2 * (n % side), 2 * (n // side), 0) for n in range(side * side)]
    return Building("grid", [str(n) for n in range(side * side)], positions, edges)


def test_wrong_paths_leave_the_true_one_after_an_inner_viewpoint(train, tokenizer):
    building = grid()
    path = (0, 1, 2, 3, 4)
    example = replace(train.examples[0], building=building, path=path)
    other = replace(example, path=(4, 3, 2))
    data = replace(train, examples=[example, other])
    paths = PathRegions({"grid": way_regions(building)})
    drawn = []
    paths.encode = lambda walks, **options: (
        drawn.extend(walks),
        PathRegions.encode(paths, walks, **options),
    )[1]
    dataset = choices(data, paths, tokenizer, num_options=32)
    drawn.clear()
    list(dataset)
    wrong = [walk.path for walk in drawn[2:32]]
    assert len(wrong) == 30
    for each in wrong:
        shared = next(
            (n for n, (a, b) in enumerate(zip(each, path, strict=False)) if a != b),
            min(len(each), 5),
        )
        assert shared >= 2
        assert 5 <= len(each) <= 7
    assert {len(each) for each in wrong} == {5, 6, 7}


def test_options_are_drawn_from_candidates(train, house, paths, tokenizer):
    right, wrong = (0, 1, 4), ((0, 2), (0, 3), (0, 1), (0,))
    beams = [Walk(house, path, 0.0) for path in (*wrong, right)]
    # The goal of the second instruction is g2, 2 m from g0.
    candidates = [beams, beams, [], [Walk(house, (2, 0, 1), 0.0)]]
    dataset = choices(train, paths, tokenizer, candidates=candidates)
    assert sum(len(labels) for _, labels in dataset) == 2
    seen = set()
    for _ in range(20):
        inputs, _ = first_of(dataset)
        # Real regions: one more than the number of each viewpoint.
        counts = inputs["region_padding_mask"].sum(1).tolist()
        assert counts[0] == 1 + 2 + 5
        # Options of one choice are different candidates.
        assert len(set(counts[1:4])) == 3
        assert set(counts[1:4]) <= {4, 5, 3, 1}
        seen.add(tuple(counts[1:4]))
    assert len(seen) > 3


def test_batches_depend_on_seed_and_epoch_alone(train, paths, tokenizer):
    def rows(epoch, **options):
        dataset = choices(train, paths, tokenizer, epoch=epoch, **options)
        return [
            value.numpy().tobytes()
            for inputs, _ in dataset
            for value in (inputs["token_ids"], inputs["region_features"])
        ]

    assert rows(0, shuffle=True) == rows(0, shuffle=True)
    assert rows(0, shuffle=True) != rows(1, shuffle=True)
    assert rows(0) != rows(1)  # The options.
    assert rows(0) != rows(0, seed=1)
    variable: Any = tf.Variable(tf.constant(1, tf.int64))
    assert rows(variable, shuffle=True) == rows(1, shuffle=True)
    # The same options in batches of another size.
    one, four = (
        np.concatenate(
            [
                inputs["region_padding_mask"].numpy().sum(1)
                for inputs, _ in choices(train, paths, tokenizer, epoch=0, batch_size=n)
            ]
        )
        for n in (1, 4)
    )
    np.testing.assert_array_equal(one, four)
    assert len(choices(train, paths, tokenizer, drop_remainder=True)) == 1


def test_pairs_of_true_paths(train, paths, tokenizer):
    dataset = path_pair_dataset(
        train, paths, tokenizer, batch_size=3, max_length=6, epoch=0
    )
    assert len(dataset) == 2
    first = {name: value.numpy() for name, value in next(iter(dataset)).items()}
    assert first["token_ids"].shape == (3, 6)
    # The special tokens are kept.
    np.testing.assert_array_equal(first["token_ids"][0, [0, -1]], [2, 3])
    walks = [Walk(x.building, x.path, x.heading) for x in train.examples[:3]]
    expected = paths.encode(walks, class_distributions=True)
    for name, value in expected.items():
        np.testing.assert_array_equal(first[name], value)
    assert first["class_distributions"].shape[-1] == 5


def test_bad_arguments_of_datasets_are_refused(train, house, paths, tokenizer):
    shed, empty = Building("shed", ["a"], [(0, 0, 0)], []), replace(train, examples=[])
    there, long = [Walk(shed, (0,), 0.0)], [Walk(house, (0, 1) * 5, 0.0)]
    alone = replace(train, examples=train.examples[:2])
    goals = [replace(x, path=x.path[-1:]) for x in train.examples]
    near = replace(train, examples=goals)
    short = PathRegions({"house": way_regions(house)}, max_path_length=2)
    for data, regions_of, options, message in (
        (train, paths, {"num_options": 1}, "`num_options` must be at least 2"),
        (train, paths, {"batch_size": 0}, "`batch_size`"),
        (train, paths, {"candidates": [[]]}, "`candidates` must be one list.*1 lists"),
        (train, paths, {"candidates": [[]] * 4}, "must have at least one instruction"),
        (train, paths, {"candidates": [there] * 4}, "must be in the building"),
        (train, paths, {"candidates": [long] * 4}, "a walk of 10 viewpoints"),
        (alone, paths, {}, "at least two paths.*2 instructions"),
        (near, paths, {}, "at least one instruction.* 4 instr"),
        (empty, paths, {}, "`data` must have at least one"),
        (train, short, {}, "from 1 to 2 viewpoints"),
    ):
        refuses(message, choices, data, regions_of, tokenizer, **options)
    bare = PathRegions({"house": [regions(classes=0)] * 6})
    for data, regions_of, message in (
        (empty, paths, "`data` must have at least one example"),
        (train, bare, "`class_distributions` needs regions"),
    ):
        refuses(message, path_pair_dataset, data, regions_of, tokenizer, batch_size=2)

"""Buildings, walks, and the reader of Room-to-Room."""

import json
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from refusals import refuses
from walk_cases import paths, viewpoints, write_r2r

from keras_attn.data import Building, Walk, WalkSimulator, read_building, read_r2r
from keras_attn.data import walk_dataset as dataset_of
from keras_attn.data.navigation.r2r import WalkData, WalkExample
from keras_attn.metrics import navigation_scores


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    return read_r2r(*write_r2r(tmp_path_factory.mktemp("r2r")))


def test_a_building_is_its_included_viewpoints(train):
    building = train.examples[0].building
    # "x" is left out, and so is the way to it.
    assert building.viewpoints == ["g0", "g1", "g2", "g3", "s", "i"]
    assert building.neighbors == [[1, 2, 3], [0, 4], [0], [0], [1], []]
    np.testing.assert_array_equal(building.positions[4], [4, -3, 3])
    stairs = math.hypot(3, 3)
    expected = [4 + stairs, stairs, 6 + stairs, 7 + stairs, 0, np.inf]
    np.testing.assert_allclose(building.distances(4), expected)
    assert building.shortest_path(3, 4) == [3, 0, 1, 4]
    assert building.shortest_path(2, 2) == [2]
    assert building.length([2, 0, 3]) == 5
    assert repr(building) == "Building('house', 6 viewpoints)"
    refuses("`goal` must be reachable.*goal='i'", building.shortest_path, 0, 5)
    for name, numbers in (("goal", (0, 6)), ("goal", (0, -1)), ("start", (0.5, 1))):
        refuses(f"`{name}` must be the num.* viewp", building.shortest_path, *numbers)
    refuses("`goal` must be the number of .*goal=-1", building.distances, -1)
    refuses("`viewpoint` must be one of the 6 .*'x'", building.number, "x")


def test_a_viewpoint_is_no_neighbor_of_itself(train, tmp_path):
    graph = viewpoints()
    for index, entry in enumerate(graph):
        entry["unobstructed"][index] = True
    building = read_r2r(*write_r2r(tmp_path, graph=graph)).examples[0].building
    assert building.neighbors == train.examples[0].building.neighbors


def test_a_path_through_viewpoints_at_one_place_ends():
    positions = [(0, 0, 0), (0, 0, 0), (1, 0, 0)]
    building = Building("twins", list("abc"), positions, [(0, 1), (0, 2), (1, 2)])
    assert building.shortest_path(1, 2)[-1] == 2


def test_shortest_paths_are_those_of_all_paths():
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(11, 3))
    edges: Any = [rng.choice(11, 2, replace=False).tolist() for _ in range(13)]
    building = Building("random", list("abcdefghijk"), positions, edges)
    # Floyd and Warshall.
    lengths = np.where(np.eye(11, dtype=bool), 0.0, np.inf)
    for one, other in edges:
        lengths[one, other] = lengths[other, one] = building.length([one, other])
    for middle in range(11):
        through = lengths[:, [middle]] + lengths[[middle]]
        lengths = np.minimum(lengths, through)
    assert np.isinf(lengths).any()
    for goal in range(11):
        np.testing.assert_allclose(building.distances(goal), lengths[goal])
        for start in np.flatnonzero(np.isfinite(lengths[goal])):
            path = building.shortest_path(int(start), goal)
            np.testing.assert_allclose(building.length(path), lengths[start, goal])


@pytest.mark.parametrize(
    "names, positions, edges, message",
    [
        ([], np.zeros((0, 3)), [], "`viewpoints` must be one or more"),
        (
            ["a", "a"],
            np.zeros((2, 3)),
            [],
            "`viewpoints` must be one or more different",
        ),
        (["a"], [[0, np.nan, 0]], [], "`positions` must be 1 finite rows of x, y"),
        (["a"], [[0, 0]], [], r"`positions` must be 1 .*of shape \(1, 2\)"),
        (["a", "b"], np.zeros((2, 3)), [(1, 1)], r"`edges` must be.*\(1, 1\)"),
        (["a", "b"], [["x", 0, 0], [0]], [], r"`positions` must be 2 finite rows"),
        (["a", "b"], np.zeros((2, 3)), [(0, 1, 1)], r"`edges` must be.*\(0, 1, 1\)"),
        (["a", "b"], np.zeros((2, 3)), [("a", "b")], r"`edges` must be.*\('a', 'b'"),
        (["a", "b"], np.zeros((2, 3)), [(0, 1.0)], r"`edges` must be.*\(0, 1.0\)"),
        (["a", "b"], np.zeros((2, 3)), [(0, 2)], r"different numbers below 2.*\(0, 2"),
    ],
)
def test_bad_buildings_are_refused(names, positions, edges, message):
    refuses(message, Building, "bad", names, positions, edges)


def test_a_walker_sees_what_is_around_it(train):
    example = train.examples[0]  # At g0, looking north: g3 ahead, g1 right, g2 left.
    simulator = WalkSimulator([example.start], 4)
    assert (simulator.num_actions, simulator.stop_action) == (5, 4)
    (walk,) = simulator.start()
    world, is_possible = simulator.observe([walk])
    assert world.dtype == np.float32
    ahead, right, behind, left = world.reshape(4, 5)
    np.testing.assert_allclose(ahead, [1, 3 / 5, 0, 0, 0])
    np.testing.assert_allclose(right, [1, 4 / 5, 0, 0, 0])
    np.testing.assert_allclose(left, [1, 2 / 5, 0, 0, 0])
    assert not behind.any()
    assert is_possible.tolist() == [[True, True, False, True, True]]
    # To g1, looking east: g0 behind, from where it came, and the stairs up to s.
    (walk,) = simulator.move([walk], [1])
    assert walk.path == (0, 1)
    np.testing.assert_allclose(walk.heading, math.pi / 2)
    world, is_possible = simulator.observe([walk])
    ahead, right, behind, left = world.reshape(4, 5)
    np.testing.assert_allclose(behind, [1, 4 / 5, 0, 1, 1])
    np.testing.assert_allclose(right, [1, math.hypot(3, 3) / 5, math.pi / 4, 0, 0])
    assert is_possible.tolist() == [[False, True, True, False, True]]
    (stopped,) = simulator.move([walk], [4])
    assert stopped.is_done and stopped.path == walk.path and not walk.is_done
    assert simulator.observe([stopped])[1].tolist() == [[False] * 4 + [True]]
    assert simulator.move([stopped], [4]) == [stopped]
    for state, action in ((stopped, 1), (walk, 0), (walk, 7)):
        match = rf"`actions` must be possible: \[.*4\] at .*'g1'.*action={action}"
        refuses(match, simulator.move, [state], [action])
    refuses("`walks` and `actions` must have the same", simulator.move, [walk], [1, 1])
    for action in (1.0, math.nan):
        refuses("`actions` must be integers, one", simulator.move, [walk], [action])
    assert simulator.move([], []) == []


def test_a_walker_knows_its_walk_and_looks_ahead(train):
    example = train.examples[0]  # At g0, looking north.
    start = Walk(example.building, example.path[:1], 0.25)
    plain = WalkSimulator([start], 4)
    rich = WalkSimulator([start], 4, look_ahead=True, odometry=True)
    assert (plain.world_dim, rich.world_dim) == (4 * 5, 4 * 6 + 4)
    (walk,) = rich.start()
    turned = 0.0
    for steps, (action, walked) in enumerate([(1, 4.0), (1, 4.0 + math.hypot(3, 3))]):
        world = rich.observe([walk])[0]
        assert world.shape == (1, rich.world_dim) and world.dtype == np.float32
        sectors = world[0, :24].reshape(4, 6)
        # The other features are those of a walker without these options.
        np.testing.assert_array_equal(
            sectors[:, :5].ravel(), plain.observe([walk])[0][0]
        )
        for there in walk.building.neighbors[walk.path[-1]]:
            ways = len(walk.building.neighbors[there])
            np.testing.assert_allclose(
                sectors[rich.action_to(walk, there), 5], ways / 5
            )
        assert np.count_nonzero(sectors[:, 5]) == np.count_nonzero(sectors[:, 0])
        np.testing.assert_allclose(
            world[0, 24:27], [math.sin(turned), math.cos(turned), steps / 5], atol=1e-6
        )
        (walk,) = rich.move([walk], [action])
        turned = walk.heading - 0.25
        np.testing.assert_allclose(rich.observe([walk])[0][0, 27], walked / 5, 1e-6)
    # Batches of a data set are what the walker sees.
    options = {"num_sectors": 12, "look_ahead": True, "odometry": True}
    dataset = dataset_of(train, batch_size=1, **options)
    simulator = train.simulator(**options)
    worlds, _ = simulator.follow(example.start, example.path)
    inputs, _, _ = next(iter(dataset))
    np.testing.assert_array_equal(inputs["world_state"][0], worlds)


def test_neighbors_in_one_direction_have_sectors_of_their_own():
    # All a little east of north, and one in the south.
    positions = [(0, 0, 0), (0.1, 5, 0), (0.2, 5, 0), (0.3, 5, 1), (0, -5, 0)]
    building = Building("row", list("abcde"), positions, [(0, n) for n in range(1, 5)])
    simulator = WalkSimulator([Walk(building, (0,), 0.0)], 8)
    (walk,) = simulator.start()
    actions = [simulator.action_to(walk, number) for number in range(1, 5)]
    assert actions == [0, 1, 7, 4]
    for action, number in zip(actions, range(1, 5), strict=True):
        assert simulator.move([walk], [action])[0].path == (0, number)
    few = WalkSimulator([walk], 3)
    refuses("`num_sectors` must be at least 4, .*'a' in", few.observe, [walk])
    refuses("`viewpoint` must be a neighbor of 'a'.*'a'", simulator.action_to, walk, 0)
    refuses("`viewpoint` must be a neighbor .*point=99", simulator.action_to, walk, 99)
    refuses("`num_sectors` must be a positive integer", WalkSimulator, [walk], 0)


def test_a_crowded_direction_moves_the_neighbors_beside_it():
    # 5° and 10° share sector 0 of 4, from -45° to 45°; 115° would have had sector 1.
    angles = np.radians([5, 10, 115])
    positions = [(0, 0, 0), *((np.sin(x), np.cos(x), 0) for x in angles)]
    building = Building("row", list("abcd"), positions, [(0, n) for n in (1, 2, 3)])
    walk = Walk(building, (0,), 0.0)
    simulator = WalkSimulator([walk], 4)
    assert [simulator.action_to(walk, number) for number in (1, 2, 3)] == [0, 1, 2]
    path: Any = np.array([0, 3])
    np.testing.assert_array_equal(simulator.follow(walk, path)[1], [2, 4])


def test_a_path_is_followed_by_its_actions(train):
    for example in train.examples:
        simulator = WalkSimulator([example.start], 12)
        worlds, actions = simulator.follow(example.start, example.path)
        walks = simulator.start()
        for world, action in zip(worlds, actions, strict=True):
            np.testing.assert_array_equal(simulator.observe(walks)[0][0], world)
            walks = simulator.move(walks, [action])
        assert walks[0].path == example.path and walks[0].is_done
        assert actions[-1] == 12
    with pytest.raises(ValueError, match="`path` must begin where the walk is, at.*0"):
        train.simulator().follow(train.examples[0].start, [2, 0])


def test_a_split_is_read(train):
    assert len(train) == 4
    assert [each.path_id for each in train.examples] == [100, 100, 101, 102]
    assert train.words[:4] == ["go", "right", "and", "the"]  # By count, then by name.
    assert train.vocabulary_size == len(train.words) + 2
    encoded = train.encode(["Go right", "go WRONG way, and right"])
    go, right, way, and_ = (
        train.words.index(w) + 2 for w in "go right way and".split()
    )
    expected = [[go, right, 0, 0, 0], [go, 1, way, and_, right]]
    np.testing.assert_array_equal(encoded["token_ids"], expected)
    np.testing.assert_array_equal(encoded["padding_mask"].sum(1), [2, 5])


def test_bad_instructions_and_words_are_refused(train, tmp_path):
    for bad in ("stop", [""], ["go", 3]):
        refuses("`instructions` must be .*Received: ", train.encode, bad)
    assert train.encode(iter(["go"]))["token_ids"].shape == (1, 1)
    for words in ("go right", ["go", "go"]):
        with pytest.raises(ValueError, match="`words` must be a list of different"):
            read_r2r(*write_r2r(tmp_path), words=words)
    with pytest.raises(ValueError, match="`data` must have at least one example"):
        dataset_of(WalkData([], []), batch_size=2)


def test_words_of_another_split(tmp_path):
    files = write_r2r(tmp_path)
    assert read_r2r(*files, words=["up"]).vocabulary_size == 3
    assert read_r2r(*files, min_word_count=3).words == ["go", "right"]


def test_batches_hold_the_worlds_of_the_paths(train):
    batches = list(dataset_of(train, batch_size=3, num_sectors=5))
    assert [len(labels) for _, labels, _ in batches] == [3, 1]
    inputs, labels, weights = batches[0]
    words = max(len(each.instruction.split()) for each in train.examples[:3])
    assert inputs["token_ids"].shape == (3, words)
    for row, example in enumerate(train.examples[:3]):
        simulator = WalkSimulator([example.start], 5)
        worlds, actions = simulator.follow(example.start, example.path)
        np.testing.assert_array_equal(inputs["world_state"][row], worlds)
        np.testing.assert_array_equal(labels[row], actions)
    np.testing.assert_array_equal(weights, np.ones((3, 3)))
    token_ids = train.encode([each.instruction for each in train.examples])["token_ids"]
    np.testing.assert_array_equal(inputs["token_ids"], token_ids[:3, :words])
    mask = inputs["padding_mask"].numpy()
    np.testing.assert_array_equal(mask, token_ids[:3, :words] > 0)
    cut = next(iter(dataset_of(train, batch_size=4, num_sectors=5, max_words=2)))
    np.testing.assert_array_equal(cut[0]["token_ids"], token_ids[:, :2])


def test_the_order_is_a_function_of_the_seed_and_the_epoch(train, tmp_path):
    entries = paths()
    entries[2]["path"] = ["g2", "g0"]
    data = read_r2r(*write_r2r(tmp_path, entries))
    epoch = tf.Variable(tf.zeros((), tf.int64))
    batches = dataset_of(data, batch_size=4, shuffle=True, seed=3, epoch=epoch)

    def rows():
        ((inputs, _, weights),) = batches
        # The shorter path ends in padding.
        assert sorted(weights.numpy().sum(1).tolist()) == [2, 3, 3, 3]
        return inputs["token_ids"].numpy().tolist()

    orders = []
    for number in (0, 1, 2, 3):
        epoch.assign(number)
        orders.append(rows())
    assert any(order != orders[0] for order in orders)
    epoch.assign(1)
    assert rows() == orders[1]
    small = dataset_of(data, batch_size=3, drop_remainder=True)
    assert len(small) == 1
    refused: Any = ({"batch_size": 0}, {"batch_size": 2, "max_words": 0})
    for options in refused:
        refuses("must be a positive integer", dataset_of, data, **options)


def test_scores_of_walks(train):
    simulator = train.simulator(8)
    walks = simulator.start()
    there = [simulator.follow(each.start, each.path)[1][0] for each in train.examples]
    walks = simulator.move(walks, there)  # One step of two.
    scores = navigation_scores(walks, train.examples)
    stairs = math.hypot(3, 3)
    away = [stairs, stairs, 2, 4]
    np.testing.assert_allclose(scores["navigation_error"], np.mean(away))
    np.testing.assert_allclose(scores["path_length"], (4 + 4 + 3 + 2) / 4)
    assert scores["success"] == scores["oracle_success"] == 1 / 4
    np.testing.assert_allclose(scores["spl"], 1 / 4)
    # One that goes past its goal, and one that comes back: SPL 3 of 7.
    example = train.examples[2]
    forth = simulator.move(walks[2:3], [simulator.action_to(walks[2], 2)])
    back = simulator.move(forth, [simulator.action_to(forth[0], 0)])
    scores = navigation_scores(back, [example])
    assert scores["success"] == 1
    np.testing.assert_allclose(scores["spl"], 5 / 7)
    scores = navigation_scores(walks[3:], train.examples[3:], success_distance=4.5)
    assert scores["success"] == 1
    refuses("`walks` must not be empty", navigation_scores, [], [])
    with pytest.raises(ValueError, match="`success_distance` must be above 0.*=-1"):
        navigation_scores(walks, train.examples, success_distance=-1)


def test_a_goal_that_is_out_of_reach_is_a_failure():
    building = Building("parts", list("abc"), np.eye(3), [(0, 1)])
    example = WalkExample(1, "go", building, (0, 2), 0.0)
    scores = navigation_scores([Walk(building, (0, 1), 0.0)], [example])
    assert scores["success"] == scores["oracle_success"] == scores["spl"] == 0
    assert scores["navigation_error"] == math.inf
    other = Walk(Building("other", list("abd"), np.eye(3), []), (0,), 0.0)
    match = r"`walks` must be in the order of .*walk 0 in Building\('other', 3.*'parts'"
    refuses(match, navigation_scores, [other], [example])


@pytest.mark.parametrize(
    "entries, message",
    [
        ({}, "R2R_train.json must hold a JSON list.*holds a dict"),
        ([], "R2R_train.json must have paths that can be used"),
        ([3], "R2R_train.json, entry 0 must be an object. Received: 3"),
        (paths(path_id="7"), "entry 1 must have an integer as `path_id`.*'7'"),
        (paths(scan="../a"), "letters and digits as `scan`.*scan='../a'"),
        (paths(heading=float("nan")), "a finite number as `heading`.*heading=nan"),
        (paths(path=[]), "path 101 must have a list of viewpoints as `path`"),
        (paths(path=["g3", "no"]), "path 101: `viewpoint` must be one of.*'no'"),
        (paths(path=["g3", "i"]), "must have a goal that can be reached .*goal='i'"),
        (paths(path=["g3", "g2"]), "neighbor to neighbor.*step from 'g3' to 'g2'"),
        (paths(instructions=[]), "path 101 must have a list of `instructions`"),
        (paths(instructions=["?!"]), "must have instructions of at least one word"),
    ],
)
def test_bad_annotations_are_refused(entries, message, tmp_path):
    refuses(message, read_r2r, *write_r2r(tmp_path, entries))


def test_the_reason_is_named_if_all_paths_are_left_out(tmp_path):
    entries = [{**entry, "scan": "hut"} for entry in paths()]
    match = "must have paths that can be used.*3 left out; .*no hut_connectivity.json"
    refuses(match, read_r2r, *write_r2r(tmp_path, entries), on_error="skip")


def test_bad_paths_are_left_out(tmp_path):
    files = write_r2r(tmp_path, paths(path=["g3", "g2"]))
    with pytest.warns(UserWarning, match="left out 1 .*R2R_train.json, entry 1"):
        data = read_r2r(*files, on_error="skip")
    assert len(data) == 3
    assert "step from 'g3' to 'g2'" in data.skipped["R2R_train.json, entry 1"]


@pytest.mark.parametrize(
    "graph, message",
    [
        ([], "house_connectivity.json must have included viewpoints"),
        (viewpoints(image_id="g0"), "a unique `image_id`.*6 viewpoints of 5 names"),
        ([1], "house_connectivity.json, entry 0 must be an object"),
        (viewpoints(image_id=5), "entry 2 must have a text as `image_id`"),
        (viewpoints(included=1), "entry 2 must have true or false as `included`"),
        (viewpoints(pose=[1] * 15), "entry 2 must have 16 finite numbers as `pose`"),
        (viewpoints(pose=[1] * 15 + ["a"]), "entry 2 must have 16 finite numbers"),
        (viewpoints(unobstructed=[True]), "entry 2 must have 7 of true or false as"),
    ],
)
def test_bad_buildings_of_files_are_refused(graph, message, tmp_path):
    _, folder = write_r2r(tmp_path, graph=graph)
    refuses(message, read_building, folder / "house_connectivity.json")


def test_missing_and_damaged_files_are_named(tmp_path):
    annotations, folder = write_r2r(tmp_path)
    with pytest.raises(ValueError, match="`connectivity_folder` must be an existing"):
        read_r2r(annotations, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="`min_word_count` must be a positive integer"):
        read_r2r(annotations, folder, min_word_count=0)
    building = folder / "house_connectivity.json"
    building.write_text(json.dumps(viewpoints())[:-9], "utf-8")
    refuses("house_connectivity.json must be JSON", read_r2r, annotations, folder)
    building.unlink()
    with pytest.raises(FileNotFoundError, match="no house_connectivity.json"):
        read_r2r(annotations, folder)

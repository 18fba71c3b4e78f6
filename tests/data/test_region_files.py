"""Regions from files: what is read, what is refused, and the pipeline."""

import numpy as np
import pytest
import tensorflow as tf
from backend import skip_module_without_tensorflow
from model_cases import inputs_for, numpy, tiny
from refusals import refuses, refuses_in_epoch

from keras_attn.data import read_regions, region_dataset

skip_module_without_tensorflow("tf.data feeds TensorFlow")

F, K = 7, 5
HEIGHT, WIDTH = 31, 43


def regions(count, seed=0, **changes):
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 20, (count, 2))
    shares = rng.random((count, K)).astype("float32")
    arrays = {
        "features": rng.standard_normal((count, F)).astype("float32"),
        "boxes": np.concatenate([corners, corners + 9], 1).astype("float32"),
        "image_size": np.array([HEIGHT, WIDTH]),
        "class_distributions": shares / shares.sum(1, keepdims=True),
        "scores": rng.random(count).astype("float32"),
    }
    return {k: v for k, v in {**arrays, **changes}.items() if v is not None}


def write_record(path, arrays, copies=1):
    features = {
        name: tf.train.Feature(
            float_list=tf.train.FloatList(value=np.ravel(array).tolist())
        )
        for name, array in arrays.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(copies):
            writer.write(example.SerializeToString())


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "a.npz", **regions(3, 1))
    write_record(tmp_path / "b.tfrecord", regions(5, 2))
    np.savez(tmp_path / "c.npz", **regions(1, 3))
    return tmp_path


def test_files_of_both_kinds(folder):
    data = read_regions(folder)
    assert (data.names, data.feature_dim, data.num_classes) == (["a", "b", "c"], F, K)
    for number, (count, seed) in enumerate([(3, 1), (5, 2), (1, 3)]):
        found, expected = data.read(number), regions(count, seed)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-6)
    assert len(data.check()) == 3


def test_batches_are_padded(folder):
    data = read_regions(folder)
    dataset = region_dataset(data, num_regions=6, batch_size=2)
    assert dataset.cardinality() == 2
    first, last = dataset
    assert first["region_padding_mask"].numpy().sum(1).tolist() == [3, 5]
    assert last["index"].numpy().tolist() == [2]
    for row, (count, seed) in enumerate([(3, 1), (5, 2)]):
        expected = regions(count, seed)
        expected["region_features"] = expected["features"]
        sides = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
        expected["region_boxes"] = expected["boxes"] / sides
        names = ("region_features", "region_boxes", "class_distributions", "scores")
        for name in names:
            values = first[name][row].numpy()
            assert values.dtype == np.float32
            np.testing.assert_allclose(values[:count], expected[name], rtol=1e-6)
            assert not values[count:].any()
    assert first["image_size"].numpy().tolist() == [[HEIGHT, WIDTH]] * 2
    shuffled = region_dataset(
        data,
        num_regions=6,
        batch_size=3,
        shuffle=True,
        epoch=tf.Variable(tf.constant(4)),
    )
    orders = [tuple(next(iter(shuffled))["index"].numpy()) for _ in range(2)]
    assert orders[0] == orders[1] and sorted(orders[0]) == [0, 1, 2]


def test_a_box_that_ends_a_little_outside_is_cut(tmp_path):
    np.savez(tmp_path / "a.npz", **regions(1, boxes=[[-0.5, 2, WIDTH + 0.5, HEIGHT]]))
    (batch,) = region_dataset(read_regions(tmp_path), num_regions=1, batch_size=1)
    found = batch["region_boxes"][0, 0].numpy()
    np.testing.assert_allclose(found, [0, 2 / HEIGHT, 1, 1], rtol=1e-6)


def test_the_regions_of_a_detector(tmp_path):
    model = tiny("mask_rcnn_resnet50")
    images = inputs_for(model)["images"]
    for number, image in enumerate(images):
        found = numpy(model.region_model(5)(image[None]))
        count = int(found.pop("num_detections")[0])
        arrays = {name: array[0, :count] for name, array in found.items()}
        np.savez(tmp_path / f"{number}.npz", image_size=image.shape[:2], **arrays)
    found = read_regions(tmp_path).check()
    (batch,) = region_dataset(found, num_regions=5, batch_size=len(images))
    features, boxes, _, shares = map(numpy, model.region_features(images, 5))
    np.testing.assert_allclose(batch["region_features"], features, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch["class_distributions"], shares, atol=1e-5)
    height, width = images.shape[1:3]
    sides = [width, height, width, height]
    np.testing.assert_allclose(batch["region_boxes"], boxes / sides, atol=1e-5)


def test_more_regions_than_slots(folder):
    data = read_regions(folder)
    dataset = region_dataset(data, num_regions=4, batch_size=3)
    match = r"`num_regions` must be at least 5, the regions of .*b\.tfrecord"
    refuses_in_epoch(match, dataset)
    dataset = region_dataset(data, num_regions=4, batch_size=3, overflow="best")
    (batch,) = dataset
    expected = regions(5, 2)
    kept = np.sort(np.argsort(-expected["scores"])[:4])
    np.testing.assert_allclose(
        batch["region_features"][1], expected["features"][kept], 1e-6
    )
    assert batch["region_padding_mask"].numpy().sum(1).tolist() == [3, 4, 1]


def test_files_without_distributions_and_scores(tmp_path):
    few = regions(2, class_distributions=None, scores=None)
    np.savez(tmp_path / "a.npz", **few)
    data = read_regions(tmp_path)
    (batch,) = region_dataset(data, num_regions=3, batch_size=1)
    assert "class_distributions" not in batch
    assert batch["scores"].numpy().tolist() == [[1, 1, 0]]
    np.savez(tmp_path / "b.npz", **regions(2, scores=None))
    refuses(
        r"b\.npz: `class_distributions` must be in ev", read_regions(tmp_path).check
    )


BAD = {
    "no_boxes": ({"boxes": None}, "must have features, boxes, .*boxes is mis"),
    "no_region": ({"boxes": np.zeros((0, 4))}, r"`boxes` must have the shape \(r"),
    "one_box": ({"boxes": np.ones(4)}, r"Received: boxes of shape \(4,\)"),
    "fewer_boxes": ({"boxes": [[1, 1, 2, 2]]}, r"`features` must be .*\(1, 7\)"),
    "features": ({"features": np.ones((3, 8))}, r"`features` must be finite.*\(3, 7\)"),
    "nan": ({"features": np.full((3, F), np.nan)}, "`features` must be finite numbers"),
    "text": ({"scores": np.array(["a"] * 3)}, "`scores` must be finite numbers"),
    "object": ({"scores": np.array([None] * 3)}, "must be a whole `.npz` of numbers"),
    "turned": ({"boxes": np.array([[9, 1, 3, 5.0]] * 3)}, "left < right.*box 0: "),
    "outside": (
        {"boxes": np.array([[1, 1, 3, 35.0]] * 3)},
        "inside of the image of 31",
    ),
    "size": ({"image_size": np.array([0, 9])}, "`image_size` must be the height"),
    "sum": (
        {"class_distributions": np.full((3, K), 0.3)},
        r"`class_distributions` must be probabilities that sum to 1.*sum 1\.5000",
    ),
    "negative": (
        {"class_distributions": np.array([[2.0, -1.0, 0, 0, 0]] * 3)},
        r"sum to 1.*region 0 .*minimum -1\.0000",
    ),
    "distributions": ({"class_distributions": None}, "in every file or in none"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_named_or_left_out(folder, case):
    changes, match = BAD[case]
    np.savez(folder / "d.npz", **regions(3, **changes))
    refuses(rf"d\.npz: .*{match}", read_regions(folder).check)
    data = read_regions(folder, on_error="skip")
    with pytest.warns(UserWarning, match="left out 1 files"):
        assert data.check().names == ["a", "b", "c"]
    data = read_regions(folder, on_error="skip")
    with pytest.warns(UserWarning, match="Left out while reading"):
        (batch,) = region_dataset(data, num_regions=6, batch_size=4)
    assert batch["index"].numpy().tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("copies", [0, 2])
def test_a_record_must_be_one_example(folder, copies):
    write_record(folder / "b.tfrecord", regions(2), copies)
    match = r"b\.tfrecord: A file of regions must be a whole TFRecord of one"
    refuses(match, read_regions(folder).check)


def test_damaged_files_are_named(folder):
    for name in ("b.tfrecord", "c.npz"):
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        refuses(
            f"{name}: A file of regions must be a whole", read_regions(folder).check
        )
        path.write_bytes(content)
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"]))
    features = tf.train.Features(feature={"boxes": feature})
    with tf.io.TFRecordWriter(str(folder / "b.tfrecord")) as writer:
        writer.write(tf.train.Example(features=features).SerializeToString())
    refuses("`boxes` must be numbers. Received: a bytes", read_regions(folder).check)


def test_bad_folders_and_arguments_are_named(folder, tmp_path_factory):
    data = read_regions(folder)
    refuses("`num_regions` must be", region_dataset, data, num_regions=0, batch_size=2)
    with pytest.raises(ValueError, match="`overflow` must be one of 'raise'"):
        region_dataset(data, num_regions=2, batch_size=2, overflow="cut")  # type: ignore
    np.savez(folder / "b.npz", **regions(2))
    refuses("one file of each name.*with 'b' twice", read_regions, folder)
    empty = tmp_path_factory.mktemp("empty")
    refuses(r"`folder` must have files of regions, \.npz", read_regions, empty)
    (empty / "a.npz").write_bytes(b"")
    refuses(r"a\.npz: A file of regions must be a whole", read_regions, empty)
    message = "at least one file of regions that can be read"
    refuses(message, read_regions, empty, on_error="skip")

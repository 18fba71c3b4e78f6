"""The share of attention inside of an object, against sums over single pixels."""

import keras
import numpy as np
import pytest
from model_cases import numpy

from keras_attn.data import Shapes
from keras_attn.metrics import (
    AttentionInside,
    attention_inside,
    named_objects,
    word_objects,
)

RNG = np.random.default_rng(0)
B, GLIMPSES, GRID, SIZE = 3, 2, (3, 5), (7, 11)
MASKS = RNG.random((B, *SIZE)) < 0.3
MAPS = RNG.random((B, GLIMPSES, *GRID)).astype("float32")


def by_fine_pixels(heat, mask):
    """Both repeated until their cells have one size, which no overlap divides."""
    (rows, columns), (height, width) = heat.shape, mask.shape
    heat = heat.repeat(height, 0).repeat(width, 1)
    mask = mask.repeat(rows, 0).repeat(columns, 1)
    return (heat * mask).sum() / heat.sum(), mask.mean()


def test_every_pixel_counts_with_its_share_of_each_place():
    inside, area = map(numpy, attention_inside(MAPS, MASKS))
    assert inside.shape == area.shape == (B, GLIMPSES)
    for b, g in np.ndindex(inside.shape):
        expected = by_fine_pixels(MAPS[b, g].astype("float64"), MASKS[b])
        np.testing.assert_allclose((inside[b, g], area[b, g]), expected, rtol=1e-5)
    np.testing.assert_allclose(area[:, 0], MASKS.mean((1, 2)), rtol=1e-5)
    # The same for maps without rows, and at any scale of the attention.
    flat = 7 * MAPS.reshape(B, GLIMPSES, 15)
    again, _ = attention_inside(flat, MASKS, grid_size=GRID)
    np.testing.assert_allclose(numpy(again), inside, rtol=1e-5)


def test_more_places_than_pixels():
    heat = RNG.random((1, 17, 13)).astype("float32")
    inside, area = attention_inside(heat, MASKS[:1])
    expected = by_fine_pixels(heat[0].astype("float64"), MASKS[0])
    np.testing.assert_allclose((numpy(inside)[0], numpy(area)[0]), expected, rtol=1e-5)


def test_evenly_spread_attention_has_the_area_inside_and_a_point_has_all_or_nothing():
    inside, area = attention_inside(np.ones((B, 2, 2)), MASKS)
    np.testing.assert_allclose(numpy(inside), numpy(area), rtol=1e-5)
    point, mask = np.zeros((2, *SIZE)), np.zeros((2, *SIZE))
    point[:, 3, 4] = mask[0, 3, 4] = mask[1, 3, 5] = 1
    assert numpy(attention_inside(point, mask)[0]).tolist() == [1, 0]


def test_one_mask_for_each_map():
    masks = np.stack([MASKS, ~MASKS], axis=1)
    inside, _ = attention_inside(MAPS, masks)
    one, _ = attention_inside(MAPS[:, 0], MASKS)
    other, _ = attention_inside(MAPS[:, 1], ~MASKS)
    expected = np.stack([numpy(one), numpy(other)], axis=1)
    np.testing.assert_allclose(numpy(inside), expected, rtol=1e-6)


def test_what_is_not_visible_or_not_attended_to_is_zero():
    masks, maps = MASKS.copy(), MAPS.copy()
    masks[1], maps[2, 1] = False, 0
    inside, area = map(numpy, attention_inside(maps, masks))
    assert not inside[1].any() and not area[1].any() and inside[2, 1] == 0 < area[2, 1]
    metric = AttentionInside()
    metric.update_state(masks, maps)
    found = {name: float(value) for name, value in metric.result().items()}
    assert found["object_visible"] == pytest.approx(2 / 3)
    assert found["attention_inside"] == pytest.approx(inside[[0, 2]].mean(), rel=1e-5)
    assert found["object_area"] == pytest.approx(area[[0, 2]].mean(), rel=1e-5)


def test_the_metric_is_that_of_all_maps_with_their_weights():
    inside, area = map(numpy, attention_inside(MAPS, MASKS))
    weights = RNG.random((B, GLIMPSES)).astype("float32")
    metric = AttentionInside(GRID)
    assert all(float(value) == 0 for value in metric.result().values())
    for rows in (slice(1), slice(1, None)):
        flat = MAPS[rows].reshape(-1, GLIMPSES, 15)
        metric.update_state(MASKS[rows], flat, weights[rows])
    expected = (inside * weights).sum() / weights.sum()
    assert float(metric.result()["attention_inside"]) == pytest.approx(expected, 1e-5)
    metric.reset_state()
    metric.update_state(MASKS, MAPS.reshape(B, GLIMPSES, 15), [1, 0, 0])
    assert float(metric.result()["object_area"]) == pytest.approx(area[0, 0], 1e-5)


def test_large_objects_can_be_left_out():
    masks = np.zeros((2, 10, 10))
    masks[0, :3, :4], masks[1, :5, :8] = 1, 1
    metric = AttentionInside(max_area=0.15)
    metric.update_state(masks, np.ones((2, 5, 5)))
    found = metric.result()
    assert float(found["object_area"]) == pytest.approx(0.12)
    assert float(found["object_visible"]) == 1


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_fit_reports_it(jit_compile):
    features = keras.Input((*GRID, 3), name="features")
    scores = keras.layers.Reshape((1, 15))(keras.layers.Dense(1)(features))
    scores = keras.layers.Softmax(name="attention_scores")(scores)
    context = keras.ops.matmul(scores, keras.layers.Reshape((15, 3))(features))
    logits = keras.layers.Dense(2, name="logits")(keras.layers.Flatten()(context))
    outputs = {"logits": logits, "attention_scores": scores}
    model = keras.Model(features, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = {"attention_scores": AttentionInside(GRID)}
    model.compile("sgd", {"logits": loss}, metrics=metrics, jit_compile=jit_compile)
    x = RNG.normal(size=(B, *GRID, 3)).astype("float32")
    y = {"logits": np.zeros(B, "int32"), "attention_scores": MASKS}
    logs = model.evaluate(x, y, return_dict=True, verbose=0)
    inside, area = attention_inside(
        model.predict(x, verbose=0)["attention_scores"], MASKS, grid_size=GRID
    )
    assert logs["attention_inside"] == pytest.approx(numpy(inside).mean(), rel=1e-4)
    assert logs["object_area"] == pytest.approx(numpy(area).mean(), rel=1e-4)
    assert set(model.fit(x, y, verbose=0).history) == set(logs)


def test_the_objects_that_questions_and_words_name():
    shapes = Shapes(image_size=32, num_objects=(2, 3), seed=3)
    batch = next(iter(shapes.dataset("questions", 5, batch_size=5)))
    masks = numpy(named_objects(batch["masks"], batch["is_named"]))
    batch_of_captions = next(iter(shapes.dataset("captions", 5, batch_size=5)))
    numbers = numpy(batch_of_captions["caption_objects"])
    of_words = numpy(word_objects(batch_of_captions["masks"], numbers))
    assert masks.shape == (5, 32, 32) and of_words.shape == (*numbers.shape, 32, 32)
    hidden = 0
    for row in range(5):
        example = shapes.example(row)
        # Objects are sorted by their size in a batch, so by pixels.
        named = [example.masks[number] for number in example.question.objects]
        expected = np.any(named, axis=0) if named else np.zeros((32, 32), bool)
        np.testing.assert_array_equal(masks[row], expected)
        hidden += not named
        for word, number in enumerate(example.caption_objects):
            pixels = of_words[row, word]
            if number < 0:
                assert not pixels.any()
            else:
                assert (pixels == example.masks[number]).all()
    assert 0 < hidden < 5


@pytest.mark.parametrize(
    "maps, masks, grid_size, message",
    [
        (MAPS[:, 0] - 1, MASKS, None, "`maps` must be attention after the softmax"),
        (
            MAPS * np.nan,
            MASKS,
            None,
            "finite and at least 0. Received: values from nan",
        ),
        (MAPS, MASKS * 255, None, r"`masks` must be pixels .* from 0 to 255"),
        (MAPS, MASKS * np.nan, None, r"`masks` must be pixels of an object"),
        (MAPS, MASKS, (3, 4), "`maps` must have 3 x 4 locations on their last axis"),
        (MAPS, MASKS, 0, "`grid_size` must be a positive integer"),
        (MAPS, MASKS[0], None, r"`masks` must be .* masks.shape=\(7, 11\)"),
        (MAPS, MASKS[:2], None, r"masks.shape=\(2, 7, 11\), maps.shape=\(3, 2, 3, 5\)"),
        (MAPS[:, 0], MASKS[:, None], None, "pass `grid_size` for flat maps"),
    ],
)
def test_other_values_and_shapes_are_refused(maps, masks, grid_size, message):
    with pytest.raises(ValueError, match=message):
        attention_inside(maps, masks, grid_size=grid_size)


@pytest.mark.parametrize("max_area", [0, 1.1, float("nan")])
def test_an_area_out_of_range_is_refused(max_area):
    with pytest.raises(ValueError, match="`max_area` must be a share of the image"):
        AttentionInside(max_area=max_area)

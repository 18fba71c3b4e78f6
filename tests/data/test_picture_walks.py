"""Pictures that hang in buildings, and what a detector sees of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from walk_cases import write_r2r

from keras_attn.data import (
    Shapes,
    detect_regions,
    hang_pictures,
    instruction_words,
    picture_instructions,
    read_r2r,
    view_regions,
)


@pytest.fixture
def walks(tmp_path):
    write_r2r(tmp_path, split="train")
    return read_r2r(tmp_path / "R2R_train.json", tmp_path / "connectivity")


def test_instructions_name_an_object_of_each_picture(walks):
    shapes = Shapes(image_size=32, num_objects=(1, 2))
    building = walks.examples[0].building
    assert {each.building.name for each in walks.examples} == {building.name}
    other: Any = SimpleNamespace(name="a", viewpoints=building.viewpoints)
    pictures = hang_pictures([building, other], shapes, first=50)
    count = len(building.viewpoints)
    assert list(pictures) == ["a", building.name]
    for number, picture in enumerate(pictures[building.name]):
        # The building "a" has the first ones.
        expected = shapes.example(50 + count + number)
        np.testing.assert_array_equal(picture.image, expected.image)
    told = picture_instructions(walks, pictures)
    assert len({x.path_id for x in walks.examples}) == len(told) < len(walks)
    words = instruction_words(shapes)
    assert words == sorted(set(words))
    for each in told.examples:
        assert set(each.instruction.split()) <= set(words)
        for viewpoint in each.path:
            things = pictures[building.name][viewpoint].objects
            names = [f"the {x.size} {x.color} {x.shape}" for x in things]
            assert any(name in each.instruction for name in names)
    again = picture_instructions(walks, pictures)
    assert [x.instruction for x in again.examples] == [
        x.instruction for x in told.examples
    ]


class Detector:
    """Finds the left half and the lower right quarter of each image of 8 x 16."""

    def region_model(self, num_regions, source):
        assert (num_regions, source) == (2, "head")
        return self

    def predict_on_batch(self, pixels):
        count = len(pixels)
        assert pixels.max() <= 1
        return {
            "boxes": np.tile(
                np.array([[0, 0, 8, 8], [8, 4, 16, 8]], "float32"), (count, 1, 1)
            ),
            "scores": np.stack([[0.1, 0.2], [0.9, 0.4]])[:count],
            "features": np.ones((count, 2, 3), "float32"),
            "class_distributions": np.full((count, 2, 4), 0.25, "float32"),
        }


def test_regions_of_a_detector():
    images = np.full((2, 8, 16, 3), 255, np.uint8)
    found = detect_regions(Detector(), images, num_regions=2)
    # The first region of an image is real whatever its score.
    assert found["is_real"].tolist() == [[True, False], [True, True]]
    np.testing.assert_allclose(found["boxes"][1], [[0, 0, 0.5, 1], [0.5, 0.5, 1, 1]])
    assert not found["features"][0, 1].any() and not found["boxes"][0, 1].any()
    first, second = view_regions(found, angle=np.pi / 2)
    assert first.features.shape == (1, 3) and second.features.shape == (2, 3)
    # The middles of the boxes are a quarter of the image left and right of its middle.
    np.testing.assert_allclose(second.headings, [-np.pi / 8, np.pi / 8], rtol=1e-6)
    np.testing.assert_allclose(second.elevations, [0, -np.pi / 8], atol=1e-7)
    with pytest.raises(ValueError, match="`num_regions` must be.*num_regions=0"):
        detect_regions(Detector(), images, num_regions=0)

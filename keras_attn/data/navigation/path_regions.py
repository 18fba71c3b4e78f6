"""Paths through buildings as the regions that are seen along them, for VLN-BERT.

Legend: B walks, R regions along the longest of them, r regions of one viewpoint, F
features, K classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from keras_attn.checks.arguments import check_positive
from keras_attn.data.images.region_files import check_distributions
from keras_attn.data.navigation.buildings import Building, Walk
from keras_attn.files.reading import shown

# Keeps lengths of ways, up to 5 m with few exceptions, and their numbers near 1.
_UNIT = 5.0
# A way fills a sixteenth of the panorama.
_WAY_WIDTH = 1 / 16
# Numbers of ways that are told apart as classes of a region.
_MAX_WAYS = 8


@dataclass(frozen=True, eq=False)
class ViewpointRegions:
    """The regions that a detector found in the panorama around one viewpoint.

    Attributes:
        features: float (r, F); r may be 0.
        boxes: float (r, 4), left, top, right and bottom as shares of the image, in
            [0, 1].
        headings: float (r,), direction of the middle of each box in radians, as in
            `buildings.py`.
        elevations: float (r,), its angle upwards in radians.
        class_distributions: float (r, K), of which each row sums to 1. None if there
            are none.

    Raises:
        ValueError: If an array has a different shape, a number is not finite, a box is
            not inside of its image, or a class distribution does not sum to 1.
    """

    features: np.ndarray
    boxes: np.ndarray
    headings: np.ndarray
    elevations: np.ndarray
    class_distributions: np.ndarray | None = None

    def __post_init__(self):
        count, width = _shape_of(self.features)
        expected = {
            "features": (count, width),
            "boxes": (count, 4),
            "headings": (count,),
            "elevations": (count,),
        }
        shares = self.class_distributions
        if shares is not None:
            expected["class_distributions"] = (count, _shape_of(shares)[1])
        for name, shape in expected.items():
            array = np.asarray(getattr(self, name), np.float32)
            if array.shape != shape or not np.isfinite(array).all():
                raise ValueError(
                    f"`{name}` must be finite numbers of shape {shape}, for the "
                    f"{count} rows of `features`. Received: {name} of shape "
                    f"{array.shape}"
                )
            object.__setattr__(self, name, array)
        left, top, right, bottom = self.boxes.T
        # A detector may give boxes that end a rounding error outside.
        inside = (self.boxes >= -1e-3).all(1) & (self.boxes <= 1 + 1e-3).all(1)
        is_good = (left < right) & (top < bottom) & inside
        if not is_good.all():
            bad = int(np.argmin(is_good))
            raise ValueError(
                "`boxes` must have left < right and top < bottom, all of them shares "
                f"in [0, 1]. Received: box {bad}: {self.boxes[bad].tolist()}"
            )
        if self.class_distributions is not None:
            check_distributions(self.class_distributions)


def way_regions(building: Building) -> list[ViewpointRegions]:
    """The ways from each viewpoint as its regions, for buildings without images.

    A region is one way. Its features are its length in units of 5 m, its angle upwards
    in radians, and the number of ways at the viewpoint there in units of 5. Its class
    is that number, 8 for all larger ones. Its box is a sixteenth of a panorama whose
    middle is north.

    Args:
        building: The building.

    Returns:
        One for each viewpoint, with F = 3 and K = 8.
    """
    found = []
    for here, neighbors in enumerate(building.neighbors):
        steps = building.positions[neighbors] - building.positions[here]
        x, y, z = steps.reshape(-1, 3).T
        headings, elevations = np.arctan2(x, y), np.arctan2(z, np.hypot(x, y))
        ways = np.array([len(building.neighbors[each]) for each in neighbors], int)
        features = np.linalg.norm(steps, axis=-1) / _UNIT, elevations, ways / _UNIT
        # At the edge of the panorama a box is cut off at half of its width.
        middle = headings / (2 * math.pi) + 0.5
        height = 0.5 - elevations / math.pi
        half = _WAY_WIDTH / 2
        boxes = middle - half, height - half, middle + half, height + half
        found.append(
            ViewpointRegions(
                np.stack(features, axis=-1),
                np.clip(np.stack(boxes, axis=-1), 0, 1),
                headings,
                elevations,
                np.eye(_MAX_WAYS)[np.minimum(ways, _MAX_WAYS) - 1],
            )
        )
    return found


def view_regions(
    detected: Mapping[str, np.ndarray], angle: float
) -> list[ViewpointRegions]:
    """The regions that a detector found in one image from each viewpoint, to the north.

    Args:
        detected: From `detect_regions`, an image for each viewpoint.
        angle: Width and height of the image, in radians.

    Returns:
        The real regions of each image.
    """
    found = []
    for row, is_real in enumerate(detected["is_real"]):
        boxes = detected["boxes"][row, is_real]
        middles = (boxes[:, :2] + boxes[:, 2:]) / 2 - 0.5
        found.append(
            ViewpointRegions(
                detected["features"][row, is_real],
                boxes,
                angle * middles[:, 0],
                -angle * middles[:, 1],
                detected["class_distributions"][row, is_real],
            )
        )
    return found


class _Seen(NamedTuple):
    """The regions of a viewpoint, after the first, their mean."""

    features: np.ndarray
    boxes: np.ndarray
    headings: np.ndarray
    elevations: np.ndarray
    classes: np.ndarray


class PathRegions:
    """The regions along walks, as the inputs of VLN-BERT.

    The regions of all viewpoints of a walk are one sequence. The first region of each
    viewpoint stands for the whole panorama: its features are the mean of the others, or
    0 if there are none, its box is the image, its heading and elevation are 0, and its
    class distribution is uniform.

    Angles are relative: the heading of a region minus the heading of the walker, which
    at the start is given and after a step is the direction of that step; its elevation;
    and its heading minus the next heading of the walker, which at the end is the last
    one.

    Args:
        regions: For each building, by its name, the regions of each of its viewpoints.
        max_regions: Maximum number of regions of a viewpoint, its first included; of
            more, the first ones are kept.
        max_path_length: Maximum number of viewpoints of a walk, as of the model.

    Attributes:
        feature_dim: F.
        num_classes: K; 0 without class distributions.
        max_path_length: As above.

    Raises:
        ValueError: If regions are missing, their numbers of features or classes differ,
            or a number is not a positive integer.

    Reference:
        Majumdar et al. 2020, section 4.1 (arXiv:2004.14973); the numbers and their
        order: the authors' code.
    """

    def __init__(
        self,
        regions: Mapping[str, Sequence[ViewpointRegions]],
        *,
        max_regions: int = 101,
        max_path_length: int = 8,
    ):
        count = check_positive("max_regions", max_regions)
        self.max_path_length = check_positive("max_path_length", max_path_length)
        sizes = {
            (_shape_of(each.features)[1], _shape_of(each.class_distributions)[1])
            for viewpoints in regions.values()
            for each in viewpoints
        }
        if len(sizes) != 1:
            raise ValueError(
                "`regions` must have the same number of features and of classes at "
                "every viewpoint, of one building or more. Received: (features, "
                f"classes) of {sorted(sizes)[:3] or 'no viewpoint'}"
            )
        ((self.feature_dim, self.num_classes),) = sizes
        self._seen = {
            name: [self._with_whole(each, count - 1) for each in viewpoints]
            for name, viewpoints in regions.items()
        }

    def encode(
        self, walks: Sequence[Walk], *, class_distributions: bool = False
    ) -> dict[str, np.ndarray]:
        """The inputs of a model for the paths of walks.

        Args:
            walks: B walks.
            class_distributions: Whether to also return the class distributions, the
                targets of masked regions.

        Returns:
            `region_features` float32 (B, R, F), `region_boxes` float32 (B, R, 4),
            `region_angles` float32 (B, R, 3), `viewpoint_ids` and `region_padding_mask`
            int32 (B, R), 1 = a real region; and `class_distributions` float32
            (B, R, K), if they are asked for. Padding is 0.

        Raises:
            ValueError: If a walk is in a building without regions or whose number of
                viewpoints differs, has no viewpoint or more than `max_path_length`, or
                takes a step that is not a way; or if class distributions are asked for,
                but missing.
        """
        if class_distributions and not self.num_classes:
            raise ValueError(
                "`class_distributions` needs regions that have them. Received: "
                "class_distributions=True"
            )
        paths = [self._path(walk) for walk in walks]
        longest = max((len(each["viewpoint_ids"]) for each in paths), default=0)
        names = ["region_features", "region_boxes", "region_angles", "viewpoint_ids"]
        names += ["region_padding_mask"]
        if class_distributions:
            names.append("class_distributions")
        encoded = {}
        for name in names:
            shape = paths[0][name].shape[1:] if paths else ()
            dtype = paths[0][name].dtype if paths else np.float32
            rows = np.zeros((len(paths), longest, *shape), dtype)
            for row, path in zip(rows, paths, strict=True):
                row[: len(path[name])] = path[name]
            encoded[name] = rows
        return encoded

    def check(self, walks: Sequence[Walk]) -> None:
        """Checks that walks can be encoded.

        Args:
            walks: Any number of walks.

        Raises:
            ValueError: As `encode` does for a walk.
        """
        for walk in walks:
            self._viewpoints(walk)

    def _with_whole(self, regions: ViewpointRegions, most: int) -> _Seen:
        """The first `most` regions of a viewpoint, after their mean."""
        features = regions.features[:most]
        shares = regions.class_distributions
        if shares is None:
            shares = np.zeros((len(regions.features), 0), np.float32)
        whole = np.zeros((1, self.feature_dim), np.float32)
        if len(features):
            whole = features.mean(0, keepdims=True)
        image = np.array([[0, 0, 1, 1]], np.float32)
        uniform = np.full((1, self.num_classes), 1 / max(self.num_classes, 1))
        return _Seen(
            np.concatenate([whole, features]),
            np.concatenate([image, regions.boxes[:most]]),
            np.concatenate([np.zeros(1, np.float32), regions.headings[:most]]),
            np.concatenate([np.zeros(1, np.float32), regions.elevations[:most]]),
            np.concatenate([uniform.astype(np.float32), shares[:most]]),
        )

    def _path(self, walk: Walk) -> dict[str, np.ndarray]:
        """The regions along one walk, without padding."""
        viewpoints = self._viewpoints(walk)
        headings = _headings(walk)
        parts = []
        for index, number in enumerate(walk.path):
            seen, count = viewpoints[number], len(viewpoints[number].features)
            following = headings[min(index + 1, len(headings) - 1)]
            angles = seen.headings - headings[index], seen.elevations
            parts.append(
                {
                    "region_features": seen.features,
                    "region_boxes": seen.boxes,
                    "region_angles": np.stack(
                        [*angles, seen.headings - following], axis=-1
                    ).astype(np.float32),
                    "viewpoint_ids": np.full(count, index, np.int32),
                    "region_padding_mask": np.ones(count, np.int32),
                    "class_distributions": seen.classes,
                }
            )
        return {name: np.concatenate([x[name] for x in parts]) for name in parts[0]}

    def _viewpoints(self, walk: Walk) -> list[_Seen]:
        """The regions of the building of a walk, whose path is checked."""
        building, path = walk.building, walk.path
        viewpoints = self._seen.get(building.name, [])
        if len(viewpoints) != len(building.viewpoints):
            raise ValueError(
                f"`regions` must have the {len(building.viewpoints)} viewpoints of "
                f"building {building.name!r}. Received: {len(viewpoints)}"
            )
        if not 0 < len(path) <= self.max_path_length:
            raise ValueError(
                f"`walks` must have from 1 to {self.max_path_length} viewpoints, the "
                "`max_path_length`. Received: a walk of "
                f"{len(path)} viewpoints in building {building.name!r}"
            )
        count = len(building.viewpoints)
        is_known = all(0 <= each < count for each in path)
        steps = zip(path, path[1:], strict=False)
        if not is_known or any(b not in building.neighbors[a] for a, b in steps):
            raise ValueError(
                "`walks` must go from neighbor to neighbor of their building. "
                f"Received: path={shown(list(path))} in building {building.name!r}, of "
                f"{count} viewpoints"
            )
        return viewpoints


def _headings(walk: Walk) -> list[float]:
    """The walker's heading at each viewpoint."""
    steps = np.diff(walk.building.positions[list(walk.path)], axis=0)
    turned = [math.atan2(x, y) for x, y, _ in steps]
    start = walk.heading if walk.start_heading is None else walk.start_heading
    return [start, *turned]


def _shape_of(array) -> tuple[int, int]:
    """Number of rows and columns of a matrix; 0 for anything else."""
    rows, columns = np.shape(array) if np.ndim(array) == 2 else (0, 0)
    return rows, columns

"""Buildings as graphs of viewpoints, and walks through them.

Positions are in meters; z points up. A heading is in radians, 0 along +y, and grows to
the right, as on a compass.

Legend: V viewpoints of a building, K sectors, F features of the world, A actions.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np

from keras_attn.checks.arguments import check_positive, check_same_length, is_whole
from keras_attn.files.reading import shown

# What a walker sees in a sector, in this order.
WORLD_FEATURES = ("way", "distance", "elevation", "visited", "came_from")
# The sixth of a sector, with `look_ahead`.
LOOK_AHEAD_FEATURE = "ways_there"
# What a walker knows about its own walk; with `odometry` it follows all sectors.
ODOMETRY_FEATURES = ("turned_sine", "turned_cosine", "steps", "walked")
# Keeps distances between neighbors, up to 5 m with few exceptions, near 1. Paths have
# about five steps, and viewpoints about five ways.
_DISTANCE_UNIT = 5.0
_COUNT_UNIT = 5.0


class Building:
    """Viewpoints, and the ways between them.

    Args:
        name: Name of the building.
        viewpoints: Names of the V viewpoints.
        positions: (V, 3), in meters.
        edges: Pairs of viewpoint numbers, in either order, for viewpoints that see each
            other with nothing in between.

    Attributes:
        name: As above.
        viewpoints: As above.
        positions: float64 (V, 3).
        neighbors: For each viewpoint the numbers of its neighbors, in rising order.

    Raises:
        ValueError: If `viewpoints` is empty, a name repeats, `positions` does not have
            shape (V, 3) or is not finite, or an edge joins a viewpoint to itself or to
            one that does not exist.
    """

    def __init__(
        self,
        name: str,
        viewpoints: Sequence[str],
        positions,
        edges: Sequence[tuple[int, int]],
    ):
        self.name = name
        self.viewpoints = list(viewpoints)
        count = len(self.viewpoints)
        if not count or len(set(self.viewpoints)) != count:
            raise ValueError(
                "`viewpoints` must be one or more different names. Received: "
                f"viewpoints={shown(self.viewpoints)}"
            )
        try:
            self.positions = np.asarray(positions, np.float64)
        except (TypeError, ValueError):  # Strings, or rows of different lengths.
            self.positions = np.full(0, np.nan)
        shape = self.positions.shape
        if shape != (count, 3) or not np.isfinite(self.positions).all():
            raise ValueError(
                f"`positions` must be {count} finite rows of x, y and z, one for each "
                f"viewpoint. Received: positions of shape {shape}"
            )
        found: list[set[int]] = [set() for _ in range(count)]
        for edge in edges:
            is_pair = isinstance(edge, list | tuple | np.ndarray) and len(edge) == 2
            are_ends = is_pair and all(is_whole(x) and 0 <= x < count for x in edge)
            if not are_ends or edge[0] == edge[1]:
                raise ValueError(
                    f"`edges` must be pairs of different numbers below {count}. "
                    f"Received: {shown(edge)}"
                )
            one, other = edge
            found[one].add(other)
            found[other].add(one)
        self.neighbors = [sorted(each) for each in found]
        self._numbers = {each: index for index, each in enumerate(self.viewpoints)}
        self._to_goal: dict[int, tuple[np.ndarray, list[int]]] = {}

    def __repr__(self) -> str:
        return f"Building({self.name!r}, {len(self.viewpoints)} viewpoints)"

    def number(self, viewpoint: str) -> int:
        """The number of a viewpoint.

        Args:
            viewpoint: Its name.

        Raises:
            ValueError: If the building has no viewpoint of this name.
        """
        if viewpoint not in self._numbers:
            raise ValueError(
                f"`viewpoint` must be one of the {len(self.viewpoints)} of building "
                f"{self.name!r}. Received: viewpoint={shown(viewpoint)}"
            )
        return self._numbers[viewpoint]

    def length(self, path: Sequence[int]) -> float:
        """The length of a path of viewpoints, in meters.

        Args:
            path: Numbers of viewpoints, in order.
        """
        steps = np.diff(self.positions[list(path)], axis=0)
        return float(np.linalg.norm(steps, axis=1).sum())

    def distances(self, goal: int) -> np.ndarray:
        """Length of the shortest path to the goal from each viewpoint, (V,), in meters.

        Infinite without a path.

        Args:
            goal: Number of a viewpoint.

        Raises:
            ValueError: If `goal` is not the number of a viewpoint.
        """
        self._check_number("goal", goal)
        return self._ways_to(goal)[0]

    def shortest_path(self, start: int, goal: int) -> list[int]:
        """The viewpoints of a shortest path, both ends included.

        Args:
            start: Number of the first viewpoint.
            goal: Number of the last one.

        Raises:
            ValueError: If no path leads from `start` to `goal`, or if either is not the
                number of a viewpoint.
        """
        self._check_number("start", start)
        self._check_number("goal", goal)
        distances, following = self._ways_to(goal)
        if not np.isfinite(distances[start]):
            raise ValueError(
                f"`goal` must be reachable from `start` in building {self.name!r}. "
                f"Received: start={self.viewpoints[start]!r}, "
                f"goal={self.viewpoints[goal]!r}"
            )
        path = [start]
        while path[-1] != goal:
            path.append(following[path[-1]])
        return path

    def _check_number(self, name: str, value) -> None:
        if not is_whole(value) or not 0 <= value < len(self.viewpoints):
            raise ValueError(
                f"`{name}` must be the number of a viewpoint of building "
                f"{self.name!r}, below {len(self.viewpoints)}. "
                f"Received: {name}={value!r}"
            )

    def _ways_to(self, goal: int) -> tuple[np.ndarray, list[int]]:
        """For each viewpoint, its distance to the goal and the next one on the way."""
        if goal not in self._to_goal:
            self._to_goal[goal] = self._dijkstra(goal)
        return self._to_goal[goal]

    def _dijkstra(self, goal: int) -> tuple[np.ndarray, list[int]]:
        distances = np.full(len(self.viewpoints), np.inf)
        distances[goal] = 0.0
        following = [goal] * len(self.viewpoints)
        queue = [(0.0, goal)]
        while queue:
            distance, here = heapq.heappop(queue)
            if distance > distances[here]:
                continue
            for each in self.neighbors[here]:
                longer = distance + self.length([here, each])
                if longer < distances[each]:
                    distances[each], following[each] = longer, here
                    heapq.heappush(queue, (longer, each))
        return distances, following

    @cached_property
    def _views(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Bearing, distance and elevation angle of the neighbors of each viewpoint."""
        views = []
        for here, neighbors in enumerate(self.neighbors):
            x, y, z = (self.positions[neighbors] - self.positions[here]).T
            bearing, level = np.arctan2(x, y), np.hypot(x, y)
            views.append((bearing, np.hypot(level, z), np.arctan2(z, level)))
        return views


@dataclass(frozen=True)
class Walk:
    """The position of a walker, and its path so far.

    Attributes:
        building: The building.
        path: Numbers of the viewpoints so far; the last is where the walker is.
        heading: Where it looks, in radians.
        is_done: Whether it has stopped.
        start_heading: Where it looked before the first step, in radians. None means
            `heading`.
    """

    building: Building
    path: tuple[int, ...]
    heading: float
    is_done: bool = False
    start_heading: float | None = None

    def __post_init__(self):
        if self.start_heading is None:
            object.__setattr__(self, "start_heading", self.heading)


class WalkSimulator:
    """Walks through buildings, for `decoding.walk` and for the data of a model.

    A walker sees K sectors of equal width around it: sector 0 is straight ahead, and
    sector 1 to the right of it. Action k < K goes to the neighbor in sector k, and then
    the walker looks the way it went; action K stops. No two neighbors share a sector,
    so that all of them can be reached. Neighbors are assigned in the order of their
    distance to the middle of their own sector; each gets the free sector whose middle
    is nearest. In a crowded direction this also shifts the neighbors beside it.

    The world state consists of the `WORLD_FEATURES` of every sector, sector by sector:
    1 where there is a way and 0 elsewhere, its length in units of 5 m, its angle
    upwards in radians, whether the walker has been there, and whether it comes from
    there.

    Args:
        walks: Where the walkers start, one for each row of a batch.
        num_sectors: K.
        look_ahead: Whether each sector also has the number of ways at the viewpoint
            there, in units of 5. A walker without images cannot see that far: this
            reads the graph one step ahead.
        odometry: Whether the world state ends in `ODOMETRY_FEATURES`: sine and cosine
            of the angle between the heading and the start heading, the steps so far in
            units of 5, and the distance walked in units of 5 m.

    Attributes:
        num_sectors: K.
        look_ahead: As above.
        odometry: As above.
        num_actions: A, K + 1.
        stop_action: K.
        world_dim: F, K times the number of features of a sector, plus the features of
            the walk.

    Raises:
        ValueError: If `num_sectors` is not a positive integer, or, during a walk, if a
            viewpoint has more neighbors than there are sectors.
    """

    def __init__(
        self,
        walks: Sequence[Walk],
        num_sectors: int = 16,
        *,
        look_ahead: bool = False,
        odometry: bool = False,
    ):
        self.walks = list(walks)
        self.num_sectors = check_positive("num_sectors", num_sectors)
        self.look_ahead = look_ahead
        self.odometry = odometry
        self.num_actions = num_sectors + 1
        self.stop_action = num_sectors
        self._sector_dim = len(WORLD_FEATURES) + look_ahead
        self.world_dim = num_sectors * self._sector_dim
        self.world_dim += odometry * len(ODOMETRY_FEATURES)

    def start(self) -> list[Walk]:
        """The walks before the first action."""
        return self.walks

    def observe(self, walks: Sequence[Walk]) -> tuple[np.ndarray, np.ndarray]:
        """The observations and possible actions of walkers.

        Args:
            walks: B walks.

        Returns:
            `world_state`, float32 (B, F), and `is_possible`, bool (B, A): stopping is
            always possible, and nothing else is possible after it.
        """
        world = np.zeros((len(walks), self.num_sectors, self._sector_dim), "float32")
        is_possible = np.zeros((len(walks), self.num_actions), bool)
        is_possible[:, self.stop_action] = True
        for row, walk in enumerate(walks):
            here = walk.path[-1]
            neighbors = walk.building.neighbors[here]
            _, distance, elevation = walk.building._views[here]
            sectors = self._sectors(walk)
            came_from = walk.path[-2] if len(walk.path) > 1 else -1
            features = [
                np.ones(len(neighbors)),
                distance / _DISTANCE_UNIT,
                elevation,
                [each in walk.path for each in neighbors],
                [each == came_from for each in neighbors],
            ]
            if self.look_ahead:
                ways = [len(walk.building.neighbors[each]) for each in neighbors]
                features.append(np.array(ways) / _COUNT_UNIT)
            world[row, sectors] = np.stack(features, axis=-1)
            is_possible[row, sectors] = not walk.is_done
        world = world.reshape(len(walks), self.num_sectors * self._sector_dim)
        if self.odometry:
            world = np.concatenate([world, _odometry(walks)], axis=1)
        return world, is_possible

    def move(self, walks: Sequence[Walk], actions) -> list[Walk]:
        """The walks after one action each.

        Args:
            walks: The walks.
            actions: An integer for each of them.

        Raises:
            ValueError: If an action is not an integer or is not possible.
        """
        check_same_length(walks=walks, actions=actions)
        numbers = np.asarray(actions)
        if len(numbers) and numbers.dtype.kind not in "iu":
            raise ValueError(
                "`actions` must be integers, one for each walk. Received: "
                f"actions={shown(numbers.tolist())}"
            )
        return [
            self._move(walk, int(action))
            for walk, action in zip(walks, numbers, strict=True)
        ]

    def action_to(self, walk: Walk, viewpoint: int) -> int:
        """The action that leads to a neighbor.

        Args:
            walk: The walk.
            viewpoint: Number of the neighbor in its building.

        Raises:
            ValueError: If it is not a neighbor.
        """
        building, here = walk.building, walk.path[-1]
        if viewpoint not in building.neighbors[here]:
            is_known = is_whole(viewpoint) and 0 <= viewpoint < len(building.viewpoints)
            name = building.viewpoints[viewpoint] if is_known else viewpoint
            raise ValueError(
                f"`viewpoint` must be a neighbor of {building.viewpoints[here]!r} in "
                f"building {building.name!r}. Received: viewpoint={name!r}"
            )
        return int(self._sectors(walk)[building.neighbors[here].index(viewpoint)])

    def follow(self, walk: Walk, path: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        """The worlds on a path and its actions, for path supervision.

        Args:
            walk: The start, where the path begins.
            path: Numbers of its T viewpoints.

        Returns:
            World states float32 (T, F) and T actions, the last of which is to stop.

        Raises:
            ValueError: If `path` begins elsewhere or takes a step that is not a way.
        """
        path = list(path)
        if not path or path[0] != walk.path[-1]:
            raise ValueError(
                "`path` must begin where the walk is, at viewpoint "
                f"{walk.path[-1]}. Received: path={shown(path)}"
            )
        worlds, actions = [], []
        for viewpoint in path[1:]:
            worlds.append(self.observe([walk])[0][0])
            actions.append(self.action_to(walk, viewpoint))
            walk = self._move(walk, actions[-1])
        worlds.append(self.observe([walk])[0][0])
        return np.stack(worlds), [*actions, self.stop_action]

    def _move(self, walk: Walk, action: int) -> Walk:
        if action == self.stop_action:
            return replace(walk, is_done=True)
        here = walk.path[-1]
        sectors = [] if walk.is_done else self._sectors(walk).tolist()
        if action not in sectors:
            raise ValueError(
                f"`actions` must be possible: {[*sectors, self.stop_action]} at "
                f"viewpoint {walk.building.viewpoints[here]!r}. "
                f"Received: action={action}"
            )
        index = sectors.index(action)
        return replace(
            walk,
            path=(*walk.path, walk.building.neighbors[here][index]),
            heading=float(walk.building._views[here][0][index]),
        )

    def _sectors(self, walk: Walk) -> np.ndarray:
        """The sector of each neighbor, all different."""
        here, count = walk.path[-1], self.num_sectors
        bearing = walk.building._views[here][0]
        if len(bearing) > count:
            raise ValueError(
                f"`num_sectors` must be at least {len(bearing)}, the neighbors of "
                f"viewpoint {walk.building.viewpoints[here]!r} in building "
                f"{walk.building.name!r}. Received: num_sectors={count}"
            )
        # How far to the right, in sectors.
        turns = (bearing - walk.heading) * count / (2 * math.pi)
        offsets = np.abs(turns - np.round(turns))
        sectors = np.full(len(turns), -1)
        free = list(range(count))
        for index in np.argsort(offsets, kind="stable"):
            away = np.abs(
                (np.array(free) - turns[index] + count / 2) % count - count / 2
            )
            sectors[index] = free.pop(int(np.argmin(away)))
        return sectors


def _odometry(walks: Sequence[Walk]) -> np.ndarray:
    """The `ODOMETRY_FEATURES` of walks, float32 (B, 4)."""
    rows = np.zeros((len(walks), len(ODOMETRY_FEATURES)), "float32")
    for row, walk in zip(rows, walks, strict=True):
        turned = walk.heading - cast(float, walk.start_heading)
        walked = walk.building.length(walk.path)
        steps = (len(walk.path) - 1) / _COUNT_UNIT
        row[:] = math.sin(turned), math.cos(turned), steps, walked / _DISTANCE_UNIT
    return rows

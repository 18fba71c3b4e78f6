"""Scores of walks: how well they reach the goals of their instructions."""

from collections.abc import Sequence

import numpy as np

from keras_attn.checks.arguments import check_same_length
from keras_attn.data.navigation.buildings import Walk
from keras_attn.data.navigation.r2r import WalkExample


def navigation_scores(
    walks: Sequence[Walk],
    examples: Sequence[WalkExample],
    *,
    success_distance: float = 3.0,
) -> dict[str, float]:
    """The Room-to-Room metrics, averaged over all walks.

    Let p be the length of a walk, d the length of the shortest path from its end to the
    goal, and l the length of the shortest path from its start to the goal. The walk
    succeeds if d is below `success_distance`. Its SPL is l / max(p, l) if it succeeds,
    and 0 otherwise. If no path leads from the end to the goal, d is infinite.

    Args:
        walks: The walks, after their last action.
        examples: What each was asked to do.
        success_distance: In meters.

    Returns:
        `success`, `oracle_success` (whether any viewpoint of the walk was near enough)
        and `spl`, from 0 to 1; `navigation_error`, d, and `path_length`, p, in meters.

    Raises:
        ValueError: If walks are missing, the numbers of walks and examples differ, a
            walk is in a different building than its example, or `success_distance` is
            not positive.

    Reference:
        Anderson et al. 2018, "Vision-and-Language Navigation", section 4.3
        (arXiv:1711.07280); SPL: Anderson et al. 2018, "On Evaluation of Embodied
        Navigation Agents", section 5 (arXiv:1807.06757).
    """
    if not check_same_length(walks=walks, examples=examples):
        raise ValueError("`walks` must not be empty. Received: walks=[]")
    if not success_distance > 0:
        raise ValueError(
            "`success_distance` must be above 0, in meters. "
            f"Received: success_distance={success_distance}"
        )
    rows = []
    for index, (walk, example) in enumerate(zip(walks, examples, strict=True)):
        if walk.building.viewpoints != example.building.viewpoints:
            raise ValueError(
                "`walks` must be in the order of `examples`, each in the building of "
                f"its example. Received: walk {index} in {walk.building}, its example "
                f"in {example.building}"
            )
        distances = walk.building.distances(example.path[-1])
        away, shortest = distances[walk.path[-1]], distances[walk.path[0]]
        length = walk.building.length(walk.path)
        reached = away < success_distance
        efficiency = 0.0
        if reached:
            # If a walk begins at the goal, both lengths may be 0.
            longest = max(length, shortest)
            efficiency = shortest / longest if longest else 1.0
        rows.append(
            {
                "success": float(reached),
                "oracle_success": float(
                    distances[list(walk.path)].min() < success_distance
                ),
                "spl": float(efficiency),
                "navigation_error": float(away),
                "path_length": length,
            }
        )
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}

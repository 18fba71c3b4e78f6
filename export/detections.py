"""Compares detections in pairs, because rounding may reorder equal scores.

Legend: B batch, K detections, P pairs.
"""

from collections.abc import Iterator

import numpy as np

from keras_attn.export.errors import ExportError

Arrays = dict[str, np.ndarray]
_NAMES = {"boxes", "scores", "num_detections"}


def are_detections(outputs: Arrays) -> bool:
    """Whether outputs are detections, the first `num_detections` of which are real."""
    return set(outputs) >= _NAMES and outputs["boxes"].ndim == 3


def in_pairs(
    where: str, found: Arrays, expected: Arrays, tolerance: float
) -> tuple[Arrays, Arrays]:
    """The same detections of an artefact and of Keras, in the same order.

    A detection of Keras is paired with the artefact's detection of the same class whose
    box and score are nearest.

    Args:
        where: The signature, for messages.
        found: Outputs of the artefact, (B, K, …), and `num_detections` (B,).
        expected: Outputs of Keras.
        tolerance: Share of detections that may have no partner.

    Returns:
        The outputs of both except `num_detections`, (P, …).

    Raises:
        ExportError: If shapes differ, what comes after the last detection is not
            padding, or too many detections have no partner.
    """
    for name, want in expected.items():
        if found[name].shape != want.shape:
            raise ExportError(
                f"output `{name}` of {where} has the shape {found[name].shape}; in "
                f"Keras it has {want.shape}"
            )
    counts = [outputs["num_detections"].astype(int) for outputs in (found, expected)]
    size = expected["scores"].shape[1]
    for outputs, count in zip((found, expected), counts, strict=True):
        is_padding = np.arange(size) >= count[:, None]
        if np.any(outputs["scores"][is_padding]):
            raise ExportError(
                f"output `scores` of {where} must be 0 after the first `num_detections`"
            )
    _check_padding(where, found, expected, counts)
    pairs = [
        (row, *pair)
        for row in range(len(counts[0]))
        for pair in _pairs(
            *(
                {
                    name: x[row, : count[row]]
                    for name, x in outputs.items()
                    if x.ndim > 1
                }
                for outputs, count in zip((found, expected), counts, strict=True)
            )
        )
    ]
    total = int(counts[0].sum() + counts[1].sum())
    alone = total - 2 * len(pairs)
    if alone > tolerance * total:
        raise ExportError(
            f"{where} returns {counts[0].sum()} detections and Keras "
            f"{counts[1].sum()}; {alone} of them have no partner of the same class, a "
            f"larger share than `tolerance`={tolerance:g}"
        )
    rows, theirs, ours = np.array(pairs, int).reshape(-1, 3).T
    return tuple(  # pyright: ignore[reportReturnType]  There are two.
        {name: x[rows, places] for name, x in outputs.items() if x.ndim > 1}
        for outputs, places in ((found, theirs), (expected, ours))
    )


def _check_padding(where, found, expected, counts):
    """Raises unless the padding after the detections is the same in both."""
    for row, (one, other) in enumerate(zip(*counts, strict=True)):
        for name, want in expected.items():
            if one != other or want.ndim < 2:
                continue
            if not np.allclose(found[name][row, one:], want[row, one:], atol=1e-3):
                raise ExportError(
                    f"output `{name}` of {where} must have the same padding as in "
                    "Keras after the first `num_detections`"
                )


def _pairs(found: Arrays, expected: Arrays) -> Iterator[tuple[int, int]]:
    """Indices of the detections of one image that are the same."""
    free = np.ones(len(found["scores"]), bool)
    for index in range(len(expected["scores"])):
        distance = np.abs(found["boxes"] - expected["boxes"][index]).max(axis=-1)
        distance += np.abs(found["scores"] - expected["scores"][index])
        is_partner = free.copy()
        if "classes" in expected:
            is_partner &= found["classes"] == expected["classes"][index]
        distance = np.where(is_partner, distance, np.inf)
        if not is_partner.any():
            continue
        nearest = int(np.argmin(distance))
        free[nearest] = False
        yield nearest, index

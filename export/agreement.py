"""Whether an artefact and Keras predict the same classes.

Legend: B batch, H and W pixels, C classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from keras_attn.export.detections import are_detections
from keras_attn.export.runner import Runner
from keras_attn.export.samples import Case
from keras_attn.export.signatures import Signature


@dataclass
class Agreement:
    """Counts of the samples, or of the pixels, for which both predict one class.

    Attributes:
        counts: Number of samples or pixels of each class that Keras predicts, (C,).
        agreed: The number of these for which the artefact predicts the same class,
            (C,).
        is_map: Whether they are pixels.
    """

    counts: np.ndarray
    agreed: np.ndarray
    is_map: bool

    @property
    def share(self) -> float:
        """The share of all samples or pixels."""
        return float(self.agreed.sum() / self.counts.sum())

    @property
    def by_class(self) -> dict[int, float]:
        """The share of each class, without classes that Keras does not predict."""
        present = np.flatnonzero(self.counts)
        return {int(c): float(self.agreed[c] / self.counts[c]) for c in present}


def top1_agreement(
    runner: Runner, signature: Signature, batches: Iterable[Case], count: int
) -> dict[str, Agreement]:
    """Counts the samples, or the pixels, for which both predict the same class.

    Args:
        runner: The artefact in its stock runtime.
        signature: The same signature in Keras.
        batches: The samples; the last batch may be padded with repeated rows.
        count: Number of samples.

    Returns:
        By name of each output that may hold class scores: (B, C), or (B, H, W, C) for
        images (B, H, W, channels). Low-resolution score maps are recognized by the
        output's name.
    """
    agreements: dict[str, Agreement] = {}
    for name, inputs in batches:
        expected = signature.reference(inputs)
        if are_detections(expected):
            return {}
        sizes = [value.shape[1:3] for value in inputs.values() if value.ndim == 4]
        scores = {
            key: want for key, want in expected.items() if _is_scores(key, want, sizes)
        }
        if not scores:
            return {}
        found = runner(inputs, name)
        rows = 0
        for key, want in scores.items():
            rows = min(len(want), count)
            _add(agreements, key, found[key][:rows], want[:rows])
        count -= rows
    return {key: each for key, each in agreements.items() if each.counts.any()}


def _add(agreements, key: str, found: np.ndarray, want: np.ndarray) -> None:
    """Counts one batch of class scores, (B, …, C), where Keras predicts a class."""
    classes = want.shape[-1]
    has_class = ~np.isnan(want).any(-1).ravel()
    predicted = want.argmax(-1).ravel()[has_class]
    same = found.argmax(-1).ravel()[has_class] == predicted
    counts, agreed = np.zeros((2, classes), int)
    new = Agreement(counts, agreed, want.ndim == 4)
    agreement = agreements.setdefault(key, new)
    agreement.counts += np.bincount(predicted, minlength=classes)
    agreement.agreed += np.bincount(predicted[same], minlength=classes)


def _is_scores(key: str, want: np.ndarray, image_sizes: list[tuple[int, ...]]) -> bool:
    """Whether an output may hold class scores, of samples or of pixels."""
    is_named = key in ("logits", "classifier")
    is_map = want.ndim == 4 and (is_named or want.shape[1:3] in image_sizes)
    is_float = np.issubdtype(want.dtype, np.floating)
    return (want.ndim == 2 or is_map) and want.shape[-1] > 1 and is_float

"""Calls of relative attention, for the tests of the layer and of XLNet's block."""

import numpy as np

B, T, M, P = 2, 5, 7, 3  # Batch, tokens, memory length, targets.
S = M + T
N, H, D = 11, 13, 17  # Heads, head size, width.
ORDER = np.array(
    [[3, 0, 4, 1, 2], [1, 3, 2, 0, 4]]
)  # Rank of each token in the factorization order.
TARGETS = np.array([[0, 2, 4], [1, 2, 4]])
PADDING = np.array([[1, 0, 1, 1, 1], [1, 1, 1, 0, 1]], bool)
SEGMENTS = np.array([[0, 0, 1, 1, 2], [0, 1, 1, 1, 0]])


def draw(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


def visible_mask(*shape):
    """A random mask; the first key is always True, so that no row is empty."""
    mask = np.random.default_rng(5).random(shape) < 0.5
    mask[..., 0] = True
    return mask


MAPPING = np.eye(T, dtype="float32")[TARGETS]
EARLIER = ORDER[:, :, None] > ORDER[:, None, :]
ITSELF = np.eye(T, dtype=bool)
WITH_MEMORY = np.concatenate([np.ones((B, T, M), bool), EARLIER], 2)
PADDING_WITH_MEMORY = np.concatenate([np.ones((B, M), bool), PADDING], 1)
SEGMENTS_WITH_MEMORY = np.concatenate([np.zeros((B, M), int), SEGMENTS], 1)
CALLS = {
    "plain": {},
    "padding": {"padding_mask": PADDING},
    "mask_2": {"attention_mask": visible_mask(T, T)},
    "mask_3": {"attention_mask": visible_mask(B, T, T), "padding_mask": PADDING},
    "mask_4": {"attention_mask": visible_mask(B, N, T, T)},
    "segments": {"same_segment": SEGMENTS[:, :, None] == SEGMENTS[:, None]},
    "order": {"attention_mask": EARLIER | ITSELF},
    "memory": {
        "memory": draw(B, M, D, seed=2),
        "padding_mask": PADDING_WITH_MEMORY,
        "same_segment": SEGMENTS[:, :, None] == SEGMENTS_WITH_MEMORY[:, None],
    },
    "positions": {"positions": draw(1, 2 * T, D, seed=3)},
    "targets": {
        "targets": draw(B, P, D, seed=4),
        "target_mapping": MAPPING,
        "attention_mask": EARLIER,
        "padding_mask": PADDING,
    },
    "targets_all": {
        "targets": draw(B, P, D, seed=4),
        "target_mapping": MAPPING,
        "memory": draw(B, M, D, seed=2),
        "padding_mask": PADDING_WITH_MEMORY,
        "attention_mask": WITH_MEMORY & visible_mask(T, S),
        "same_segment": SEGMENTS[:, :, None] == SEGMENTS_WITH_MEMORY[:, None],
    },
}
CALLS["memory_in_order"] = {
    **CALLS["memory"],
    "attention_mask": np.concatenate([WITH_MEMORY[..., :M], EARLIER | ITSELF], 2),
}
# The masks of the same calls of XLNet's block, which computes the attention mask.
PERMUTED = {
    name: {**CALLS[name], "permutation_mask": EARLIER, "attention_mask": mask}
    for name, mask in {
        "order": None,
        "targets": None,
        "targets_all": visible_mask(T, S),
        "memory_in_order": None,
    }.items()
}

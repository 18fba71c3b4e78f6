import numpy as np
import pytest

from keras_attn.data.text.causal_lm import causal_lm_dataset, pack_documents


def blocks(token_ids, **options):
    """All blocks of a dataset: inputs, padding masks, labels and weights."""
    options = {"block_length": 5, "batch_size": 3, **options}
    batches = causal_lm_dataset(np.asarray(token_ids), **options)
    found = [
        (x["token_ids"], x["padding_mask"], y, w)
        for x, y, w in batches.as_numpy_iterator()
    ]
    assert len(found) == int(batches.cardinality())
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def test_documents_are_packed_with_end_tokens():
    packed = pack_documents([[5, 6], [], [7]], end_token_id=2)
    assert packed.tolist() == [5, 6, 2, 2, 7, 2] and packed.dtype == "int32"
    assert pack_documents([[65_535]], 0, dtype="uint16").dtype == "uint16"
    assert pack_documents([], 2).tolist() == []


def test_blocks_by_hand():
    tokens, real, labels, weights = blocks(range(100, 113))
    assert tokens.tolist() == [[100, 101, 102, 103, 104], [105, 106, 107, 108, 109]]
    assert labels.tolist() == [[101, 102, 103, 104, 105], [106, 107, 108, 109, 110]]
    assert real.all() and (weights == 1).all()
    dtypes = [part.dtype.name for part in (tokens, real, labels, weights)]
    assert dtypes == ["int32", "int32", "int32", "float32"]


def test_the_tail_by_hand():
    tokens, real, labels, weights = blocks(range(100, 113), keep_tail=True)
    assert tokens[2].tolist() == [110, 111, 112, 0, 0]
    assert labels[2].tolist() == [111, 112, 0, 0, 0]
    assert weights[2].tolist() == [1, 1, 0, 0, 0]
    assert real[2].tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("stride", [1, 2, 3, 5, None])
@pytest.mark.parametrize("length", [6, 7, 10, 11, 12, 29])
@pytest.mark.parametrize("keep_tail", [True, False])
def test_every_token_is_a_label_once(length, stride, keep_tail):
    text = np.arange(100, 100 + length)
    tokens, real, labels, weights = blocks(text, stride=stride, keep_tail=keep_tail)
    # Each label is the token after its input.
    assert (labels - tokens)[real == 1].tolist() == [1] * int(real.sum())
    assert not ((weights == 1) & (real == 0)).any()
    counted = labels[weights == 1].tolist()
    step = 5 if stride is None else stride
    if keep_tail:
        assert sorted(counted) == text[1:].tolist()
    else:
        lost = (length - 1 - 5) % step
        assert sorted(counted) == text[1 : length - lost].tolist()
        if stride is None:
            assert lost == (length - 1) % 5


@pytest.mark.parametrize("length", [2, 3, 5, 6])
def test_a_text_shorter_than_a_block(length):
    _, real, labels, weights = blocks(range(length), keep_tail=True)
    assert labels.shape == (1, 5) and real.sum() == weights.sum() == length - 1


def test_a_remainder_may_be_dropped():
    batches = causal_lm_dataset(
        np.arange(101), block_length=5, batch_size=3, drop_remainder=True
    )
    assert [len(x["token_ids"]) for x, _, _ in batches] == [3] * 6


def test_overlapping_blocks_have_context():
    tokens, _, labels, weights = blocks(range(100, 112), stride=2)
    assert tokens[:2].tolist() == [
        [100, 101, 102, 103, 104],
        [102, 103, 104, 105, 106],
    ]
    assert weights.tolist() == [[1] * 5] + [[0, 0, 0, 1, 1]] * 3
    # Each label after the first block has a context of at least 4 tokens.
    assert labels[1:][weights[1:] == 1].tolist() == list(range(106, 112))


def test_a_memory_mapped_file_is_read(tmp_path):
    text = np.random.default_rng(0).integers(0, 60_000, 1009)
    np.save(tmp_path / "text.npy", text.astype("uint16"))
    mapped = np.load(tmp_path / "text.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    tokens, _, labels, _ = blocks(mapped, block_length=7)
    assert tokens.dtype == "int32"
    np.testing.assert_array_equal(tokens.ravel(), text[: 144 * 7])
    np.testing.assert_array_equal(labels.ravel(), text[1 : 144 * 7 + 1])


@pytest.mark.parametrize(
    "text, options, message",
    [
        (range(50), {"block_length": 0}, "`block_length` must be a positive integer"),
        (range(50), {"batch_size": 0}, "`batch_size` must be a positive integer"),
        (range(50), {"stride": 0}, "`stride` must be a positive integer"),
        (range(50), {"stride": 6}, "`stride` must be at most.*stride=6, block"),
        ([range(10)] * 5, {}, r"array of integers.*shape=\(5, 10\)"),
        (np.arange(50.0), {}, "`token_ids` must be a one.*dtype=float64"),
        (range(5), {}, "must have at least 6 .*Received: 5 tokens"),
        (range(1), {"keep_tail": True}, "must have at least 2 .*Received: 1 tokens"),
    ],
)
def test_invalid_arguments_are_refused(text, options, message):
    with pytest.raises(ValueError, match=message):
        blocks(text, **options)


def test_ids_that_no_document_can_have():
    with pytest.raises(ValueError, match=r"ids in \[0, 65535\].*from 5 to 65536"):
        pack_documents([[5, 65_536]], 7, dtype="uint16")
    with pytest.raises(ValueError, match="ids from -1 to 7"):
        pack_documents([[-1]], 7)

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from keras_attn.data import (
    CharacterTokenizer,
    SubwordTokenizer,
    load_multi30k,
    parallel_dataset,
    read_parallel,
)

SOURCES = ["a", "abcde", "", "abc", "ab", "abcdefghijk", "abcd"]
TARGETS = ["xy", "", "xyzxyzxyz", "x", "xyz", "xxxxx", "zyx"]
SOURCE = CharacterTokenizer.train(SOURCES)
TARGET = CharacterTokenizer.train(TARGETS)


def batches(**options):
    options = {"batch_size": 3, "max_length": 97, **options}
    return parallel_dataset(SOURCES, TARGETS, SOURCE, TARGET, **options)


def texts(dataset):
    """The pairs, as text, batch by batch."""
    return [
        list(
            zip(
                SOURCE.decode_batch(inputs["token_ids"].numpy()),
                TARGET.decode_batch(labels.numpy()),
                strict=True,
            )
        )
        for inputs, labels, _ in dataset
    ]


def test_the_tensors_of_a_batch():
    inputs, labels, weights = next(iter(batches(pad_to_multiple_of=1)))
    a, b, c, d, e = (SOURCE.encode(letter)[0] for letter in "abcde")
    x, y, z = (TARGET.encode(letter)[0] for letter in "xyz")
    np.testing.assert_array_equal(
        inputs["token_ids"], [[a, 0, 0, 0, 0], [a, b, c, d, e], [0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        inputs["padding_mask"], inputs["token_ids"].numpy() != 0
    )
    np.testing.assert_array_equal(
        inputs["decoder_token_ids"],
        [[1, x, y] + [0] * 7, [1] + [0] * 9, [1, x, y, z, x, y, z, x, y, z]],
    )
    np.testing.assert_array_equal(
        labels, [[x, y, 2] + [0] * 7, [2] + [0] * 9, [x, y, z, x, y, z, x, y, z, 2]]
    )
    np.testing.assert_array_equal(weights, [[1] * 3 + [0] * 7, [1] + [0] * 9, [1] * 10])
    names = ("token_ids", "padding_mask", "decoder_token_ids")
    assert {name: x.dtype for name, x in inputs.items()} == dict.fromkeys(
        names, "int32"
    )
    assert (labels.dtype, weights.dtype) == ("int32", "float32")


def test_unshuffled_pairs_keep_their_order_and_are_complete():
    dataset = batches()
    assert texts(dataset) == [
        list(zip(SOURCES[i : i + 3], TARGETS[i : i + 3], strict=True))
        for i in (0, 3, 6)
    ]
    assert dataset.cardinality() == 3


def test_lengths_are_rounded_up_to_the_limit():
    widths = [
        (inputs["token_ids"].shape[1], labels.shape[1])
        for inputs, labels, _ in batches(pad_to_multiple_of=7, max_length=11)
    ]
    assert widths == [(7, 11), (11, 7), (7, 7)]


def test_a_truncated_target_has_no_end_token():
    inputs, labels, _ = next(iter(batches(max_length=5)))
    assert inputs["token_ids"].shape == labels.shape == (3, 5)
    assert 2 in labels.numpy()[0]
    assert 2 not in labels.numpy()[2]
    assert TARGET.decode(inputs["decoder_token_ids"].numpy()[2]) == "xyzx"


def test_a_batch_of_empty_sources_is_not_empty():
    dataset = parallel_dataset(
        ["", ""], ["", ""], SOURCE, TARGET, batch_size=2, max_length=5
    )
    inputs, labels, _ = next(iter(dataset))
    assert inputs["token_ids"].shape == (2, 5)
    assert not inputs["padding_mask"].numpy().any()
    assert labels.numpy()[:, 0].tolist() == [2, 2]


def test_the_order_changes_each_epoch_and_is_reproducible():
    one, two = batches(shuffle_seed=5), batches(shuffle_seed=5)
    first, second = texts(one), texts(one)
    assert first != second
    assert [first, second] == [texts(two), texts(two)]
    assert first != texts(batches(shuffle_seed=6))
    everything = sorted(zip(SOURCES, TARGETS, strict=True))
    for epoch in (first, second):
        assert sorted(pair for batch in epoch for pair in batch) == everything


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_buckets_hold_pairs_of_similar_length(drop_remainder):
    dataset = batches(
        bucket_boundaries=(4, 7), batch_size=2, drop_remainder=drop_remainder
    )
    # By the longer side, with the end token of the target.
    expected = [["", "abcdefghijk"], ["a", "abc"], ["abcde", "ab"], ["abcd"]]
    got = [[source for source, _ in batch] for batch in texts(dataset)]
    assert sorted(got) == sorted(expected[: 3 if drop_remainder else 4])
    assert dataset.cardinality() == len(got)


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ([], [], "must not be empty.*0 sources, 0 targets"),
        (["a"], ["x", "y"], "must have the same length.*1 sources, 2 targets"),
    ],
)
def test_sources_and_targets_must_be_of_equal_length(sources, targets, message):
    given = sources, targets, SOURCE, TARGET
    message = f"`sources` and `targets` {message}"
    refuses(message, parallel_dataset, *given, batch_size=2, max_length=5)


@pytest.mark.parametrize("name", ["batch_size", "max_length", "pad_to_multiple_of"])
def test_sizes_must_be_positive(name):
    refuses(f"`{name}` must be .*{name}=0", batches, **{name: 0})


def test_boundaries_must_be_ascending_and_positive():
    for boundaries in ((5, 3), (3, 3)):
        message = "`bucket_boundaries` must be strictly ascending.*Received"
        refuses(message, batches, bucket_boundaries=boundaries)
    refuses("`bucket_boundaries` must be .*=-3", batches, bucket_boundaries=(-3, 5))


def write(path: Path, lines: list[str]) -> Path:
    content = "\n".join(lines).encode() + b"\n"
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_plain_and_gzip_files_are_read(tmp_path):
    # U+2028 and U+0085 end a line for `str.splitlines`, but not in a corpus.
    sources = ["a b\u2028c", "", "Büsche\x85.", "d"]
    targets = ["1 2 3", "4", "5", "6 7"]
    plain = write(tmp_path / "a.en", [sources[0] + " \r", *sources[1:]])
    packed = write(tmp_path / "a.de.gz", targets)
    assert read_parallel(plain, packed) == (sources, targets)
    kept = read_parallel(plain, packed, max_words=2)
    assert kept == (sources[1:], targets[1:])


def test_the_last_newline_may_be_missing(tmp_path):
    (tmp_path / "a").write_bytes(b"x\ny")
    (tmp_path / "b").write_bytes(b"1\n2\n")
    assert read_parallel(tmp_path / "a", tmp_path / "b") == (["x", "y"], ["1", "2"])


def test_files_of_different_length_are_refused(tmp_path):
    one, two = write(tmp_path / "a", ["x"] * 5), write(tmp_path / "b", ["y"] * 7)
    refuses(r"same number.*5 lines in .*a', 7 lines in", read_parallel, one, two)


def test_errors_name_a_missing_target(tmp_path):
    one = write(tmp_path / "a", ["x"])
    message = r"`target_path` must be an existing file.*none\.de"
    refuses(message, read_parallel, one, tmp_path / "none.de")
    refuses("`max_words` must be .*max_words=0", read_parallel, one, one, max_words=0)


def test_errors_name_a_line_that_is_not_utf8(tmp_path):
    one = write(tmp_path / "a", ["x"] * 3)
    two = tmp_path / "b"
    two.write_bytes(b"ok\nok\nB\xfcsche\n")
    match = r"`target_path` must be UTF-8.*line 3 is not.*byte 1.*b'"
    refuses(match, read_parallel, one, two)


@pytest.mark.parametrize(
    "content", [b"plain text", gzip.compress(b"x" * 997, mtime=0)[:-11]]
)
def test_a_broken_gzip_file_is_refused(tmp_path, content):
    path = tmp_path / "a.gz"
    path.write_bytes(content)
    refuses(r"`source_path` must be a complete gzip file", read_parallel, path, path)


def test_multi30k_by_folder_and_by_environment_variable(tmp_path, monkeypatch):
    folder = tmp_path / "multi30k"
    folder.mkdir()
    write(folder / "train.en.gz", ["a dog"])
    write(folder / "train.de", ["ein Hund"])
    expected = (["a dog"], ["ein Hund"])
    assert load_multi30k(folder) == expected
    monkeypatch.setenv("KERAS_ATTN_DATA", str(tmp_path))
    assert load_multi30k() == expected
    swapped = load_multi30k(source_language="de", target_language="en")
    assert swapped == expected[::-1]


def test_a_missing_multi30k_is_explained(tmp_path, monkeypatch):
    monkeypatch.delenv("KERAS_ATTN_DATA", raising=False)
    refuses(r"`KERAS_ATTN_DATA` is not set.*multi30k/", load_multi30k)
    match = r"folder with `val\.en\.gz` or `val\.en`.*multi30k/dataset.*data_dir="
    refuses(match, load_multi30k, tmp_path, "val")


@pytest.mark.data
@pytest.mark.skipif(
    "KERAS_ATTN_DATA" not in os.environ, reason="KERAS_ATTN_DATA is not set"
)
def test_subwords_of_multi30k_decode_to_the_text():
    sources, targets = load_multi30k()
    assert len(sources) == len(targets) == 29_000
    assert len(load_multi30k(split="val")[0]) == 1_014
    tokenizer = SubwordTokenizer.train(targets, vocabulary_size=8000)
    assert tokenizer.vocabulary_size == 8000
    for text in targets[:1009]:
        assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())

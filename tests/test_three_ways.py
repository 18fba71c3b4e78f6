"""The example measures the costs of recurrence, convolution and attention."""

import re

import pytest
from conftest import assert_drawn


@pytest.mark.runs
@pytest.mark.variation
def test_three_ways(example, tmp_path):
    options = ("--lengths", 8, 16, "--width", 8, "--repeats", 1, "--run-dir", tmp_path)
    printed = example("three_ways", *options)
    rows = re.findall(
        r"^\| ([\w-]+) \| (\d+) .* (\d+) \| (\d+) \| (\d+) \|$", printed, re.M
    )
    chains = {
        (kind, int(length)): tuple(map(int, rest)) for kind, length, *rest in rows
    }
    # Table 1: a recurrence has T sequential steps; a kernel of 3 reaches two tokens
    # further, as a dilated one does, each three times as far as the one before it:
    # 2, 8, 26 tokens; attention has four products at any length.
    assert chains == {
        ("recurrence", 8): (8, 1, 8),
        ("recurrence", 16): (16, 1, 16),
        ("convolution", 8): (1, 4, 4),
        ("convolution", 16): (1, 8, 8),
        ("dilated", 8): (1, 2, 2),
        ("dilated", 16): (1, 3, 3),
        ("self-attention", 8): (4, 1, 4),
        ("self-attention", 16): (4, 1, 4),
    }
    assert_drawn(tmp_path, "three_ways")


def test_one_length_is_refused(example, tmp_path):
    with pytest.raises(SystemExit, match="--lengths needs two or more"):
        example("three_ways", "--lengths", 8, "--run-dir", tmp_path)


def test_attention_is_counted_at_lengths_that_have_blocks(example_module):
    """Projections and products of 4 rows, 64 wide; and the figures of the header."""
    example = example_module("three_ways")
    flops, chain, kept = example.read_graph("self-attention", 1024, 64)
    products = 2 * 4 * (4 * 1024 * 64**2 + 2 * 1024**2 * 64)
    assert flops == pytest.approx(products, rel=0.15)
    figures = f"{flops / 1e9:.4f} +[0-9.]+ +{kept / 1e6:.1f} +{chain} "
    assert re.search(f"self-attention +1024 +{figures}", example.__doc__ or "")

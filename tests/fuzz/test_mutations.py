"""The mutations of the fuzz tests are deterministic, and differ from the original."""

import pytest
from fuzz.mutations import mutations, rounds


@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 3])
def test_mutations_differ_from_the_file_and_depend_on_the_seed(data):
    found = list(mutations(data, 5, 200))
    assert len(found) == 200 and data not in found
    assert len(set(found)) > 100
    assert found == list(mutations(data, 5, 200))
    assert found != list(mutations(data, 6, 200))
    # A case does not depend on those before it.
    assert found[:7] == list(mutations(data, 5, 7))
    assert max(map(len, found)) <= len(data) + 3 * 4096


def test_rounds_multiply_the_default(monkeypatch):
    monkeypatch.delenv("KERAS_ATTN_FUZZ_ROUNDS", raising=False)
    assert rounds(30) == 30
    monkeypatch.setenv("KERAS_ATTN_FUZZ_ROUNDS", "20")
    assert rounds(30) == 600


def test_case_that_hangs_fails(time_limit):
    with pytest.raises(pytest.fail.Exception, match="more than 0.05 s"):
        with time_limit(0.05):
            while True:
                pass

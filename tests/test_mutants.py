"""The list of mutants is that of the sources as they are; `make mutants` runs it."""

import re

import mutants
import pytest

FILES = mutants.sources()
ENTRIES = mutants.read_mutants()


def test_every_mutant_changes_one_place():
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES) > 100
    for entry in ENTRIES:
        path = mutants.find(entry, FILES)
        compile(FILES[path].replace(entry.old, entry.new), path, "exec")


def test_every_mutant_has_tests():
    for entry in ENTRIES:
        assert entry.tests, entry.name
        for test in entry.tests:
            path, *_, name = test.partition("[")[0].split("::")
            text = (mutants.ROOT / path).read_text()
            assert re.search(rf"^ *def {name}\(", text, re.M), test


def test_entries_that_are_no_longer_right_are_refused():
    files = {"models/unet.py": "a = 1\nb = 1\n", "models/parts/unet.py": "c = 2\n"}

    def find(file, old, new=""):
        return mutants.find(mutants.Mutant("mine", file, old, new, []), files)

    assert find("unet.py", "a = 1") == find("models/unet.py", "b =") == "models/unet.py"
    assert find("parts/unet.py", "= 2") == "models/parts/unet.py"
    message = "`old` of the mutant 'mine' must stand exactly once in {}: .*old='{}'"
    for file, old in (("unet.py", "= 1"), ("parts/unet.py", "a ="), ("vit.py", "a =")):
        with pytest.raises(mutants.ListError, match=message.format(file, old)):
            find(file, old)
    with pytest.raises(mutants.ListError, match="`new` of the mutant 'mine' must diff"):
        find("unet.py", "a = 1", "a = 1")

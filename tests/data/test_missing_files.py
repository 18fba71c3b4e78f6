"""Every reader of a file names the file that is missing, and no argument it lacks."""

import inspect
import re

import pytest

from keras_attn import data

# In the order in which a reader of several files reads them.
PATHS = ("path", "questions", "annotations", "source_path")
READERS = {
    name: next(path for path in PATHS if path in inspect.signature(reader).parameters)
    for name in data.__all__
    if inspect.isfunction(reader := getattr(data, name))
    and set(PATHS) & set(inspect.signature(reader).parameters)
}


def test_readers_are_found():
    assert {"read_wav", "read_coco", "read_building", "load_tokenizer"} <= set(READERS)


@pytest.mark.parametrize("name", READERS)
def test_a_missing_file_is_named(name, tmp_path):
    reader = getattr(data, name)
    parameters = inspect.signature(reader).parameters
    values = {
        key: tmp_path if key.endswith("folder") else tmp_path / key
        for key, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
    }
    with pytest.raises(
        (FileNotFoundError, ValueError), match="existing|has no "
    ) as raised:
        reader(**values)
    message = str(raised.value)
    assert str(values[READERS[name]]) in message
    # In backticks are arguments of this function.
    assert set(re.findall("`([a-z_]+)`", message)) <= set(parameters)

"""Files of a checkpoint: what is refused, and that writing is atomic."""

import json
import pickle
import re
import struct

import keras
import ml_dtypes
import numpy as np
import pytest
from parity.folders import (
    CHECKPOINTS,
    altered,
    config_of,
    split_header,
    tensors_of,
    with_header,
)
from safetensors.numpy import save_file

from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.models.checkpoints import folder as folder_module
from keras_attn.models.checkpoints.families import FAMILIES
from keras_attn.models.checkpoints.folder import Folder, write_folder
from keras_attn.models.checkpoints.mapping import check_complete
from keras_attn.models.checkpoints.tensors import Tensor, TensorFile, write_tensors

CASE = CHECKPOINTS / "bert_encoder"


class Bomb:
    """An object that fails the test when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


@pytest.fixture
def checkpoint(tmp_path):
    return altered(tmp_path / "checkpoint", CASE.name)


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "sharded"
    folder.mkdir()
    for file in (CHECKPOINTS / "bert_encoder_sharded").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


# Folders.


def test_a_missing_folder(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match="`folder` must be the folder of a checkpoint, with config.json and .*: "
        "folder='.*missing'",
    ):
        load_checkpoint(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="must be the folder of a checkpoint"):
        load_checkpoint(CASE / "config.json")


def test_a_weight_has_one_key_alone():
    model = load_checkpoint(CASE)
    (family,) = [family for family in FAMILIES.values() if family.find_task(model)]
    weights = list(family.weights(model))
    check_complete(model, weights)
    with pytest.raises(ValueError, match="exactly one key .*two keys for a weight"):
        check_complete(model, [*weights, weights[3]])
    with pytest.raises(ValueError, match="exactly one key .*no key for .*kernel"):
        check_complete(model, weights[:-2])


def test_a_missing_config(checkpoint):
    (checkpoint / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="has no config.json. Received: "):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "{",
            "config.json must be JSON; is the file complete.*Expecting property name",
        ),
        ("", "config.json must be JSON.*Expecting value"),
        ("\xff", "config.json must be UTF-8; line 1 is not"),
        ("[" * 100_000, "config.json must be JSON nested at most 64 deep"),
        ("[]", "config.json must hold a JSON object.*holds a list"),
        ("null", "config.json must hold a JSON object.*holds a NoneType"),
    ],
)
def test_a_config_that_is_not_a_json_object(checkpoint, text, message):
    (checkpoint / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        load_checkpoint(checkpoint)


def test_pickles_are_named_and_never_opened(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"`folder` has no \*.safetensors. Received: folder="
    ):
        load_checkpoint(checkpoint)
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(
        FileNotFoundError,
        match=r"no \*.safetensors. pytorch_model.bin can contain code and is never "
        "opened here: if you trust it, convert it to safetensors .*save_pretrained",
    ):
        load_checkpoint(checkpoint)


def test_a_pickle_next_to_the_weights_is_not_read(checkpoint):
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    load_checkpoint(checkpoint)


def test_weights_with_another_file_name(checkpoint):
    model = checkpoint / "model.safetensors"
    expected = Folder(checkpoint).shapes
    model.rename(checkpoint / "encoder.safetensors")
    assert Folder(checkpoint).shapes == expected
    (checkpoint / "other.safetensors").write_bytes(b"")
    with pytest.raises(
        ValueError,
        match="several weight files must have model.safetensors.index.json. "
        "Received: encoder.safetensors, other.safetensors",
    ):
        Folder(checkpoint)


def test_infinities_are_saved_in_half_precision(tmp_path):
    values = np.array([-np.inf, 1.5, np.inf], "float32")
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"mask": Tensor((3,), "F16", lambda: values)})
    np.testing.assert_array_equal(TensorFile(path).read("mask"), values)
    with pytest.raises(ValueError, match="`mask` does not fit into float16.*1e\\+06"):
        write_tensors(path, {"mask": Tensor((3,), "F16", lambda: values + 1e6)})


# One file.


@pytest.mark.parametrize("keep", [0, 5, 8, 100, -1])
def test_a_truncated_file(checkpoint, keep):
    file = checkpoint / "model.safetensors"
    data = file.read_bytes()[:keep]
    file.write_bytes(data)
    with pytest.raises(
        ValueError,
        match=r"`model.safetensors` is truncated, corrupt or not a safetensors file: "
        r".+ Download it again. "
        rf"Received: path='.*model.safetensors', {len(data)} bytes",
    ):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("damage", ["text", "length", "overlap", "beyond", "dtype"])
def test_a_corrupt_file(checkpoint, damage):
    file = checkpoint / "model.safetensors"
    text, data = split_header(file.read_bytes())
    header = json.loads(text)
    header.pop("__metadata__", None)
    first, second = list(header)[:2]
    if damage == "text":
        file.write_bytes(with_header(b"\x80\x04not JSON", data))
    elif damage == "length":
        file.write_bytes(struct.pack("<Q", 2**60) + file.read_bytes()[8:])
    else:
        if damage == "overlap":
            header[first]["data_offsets"] = header[second]["data_offsets"]
        elif damage == "beyond":
            header[first]["shape"] = [10**9, 10**9]
        else:
            header[first]["dtype"] = "F31"
        file.write_bytes(with_header(json.dumps(header).encode(), data))
    with pytest.raises(ValueError, match="`model.safetensors` is truncated, corrupt"):
        load_checkpoint(checkpoint)


def test_a_file_longer_than_its_header_says(checkpoint):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"\0" * 8)
    with pytest.raises(ValueError, match="`model.safetensors` is truncated, corrupt"):
        load_checkpoint(checkpoint)


def test_dtypes_that_numpy_lacks_are_refused(tmp_path):
    file = tmp_path / "some.safetensors"
    header = {
        "small": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [0, 3]},
        "whole": {"dtype": "I64", "shape": [1], "data_offsets": [3, 11]},
    }
    data = bytes(3) + struct.pack("<q", -5)
    file.write_bytes(with_header(json.dumps(header).encode(), data))
    opened = TensorFile(file)
    assert opened.shapes == {"small": (3,), "whole": (1,)}
    assert opened.read("whole").tolist() == [-5]
    with pytest.raises(
        ValueError,
        match="`small` must have one of the dtypes F64, F32, .*: convert it. "
        "Received: dtype=F8_E4M3 in some.safetensors",
    ):
        opened.read("small")


# Several files.


def test_an_index_must_match_its_files(sharded):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    weights = content["weight_map"]
    load_checkpoint(sharded)

    def fails(error, message, **changes):
        changed = {**weights, **changes}
        changed = {key: name for key, name in changed.items() if name is not None}
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(error, match=message):
            load_checkpoint(sharded)

    fails(
        ValueError,
        r"must list the keys in its files: it differs from model-00001-of-00005.\w+ in "
        r"surprise. Received",
        surprise="model-00001-of-00005.safetensors",
    )
    fails(
        ValueError,
        r"it differs from model-0000\d-of-00005.safetensors in pooler.dense.bias",
        **{"pooler.dense.bias": None},
    )
    fails(
        FileNotFoundError,
        "names a file that is missing. Received: 'model-00009-of-00005.safetensors'",
        surprise="model-00009-of-00005.safetensors",
    )
    outside = sharded.parent / "outside.safetensors"
    save_file({"surprise": np.zeros(3, "float32")}, outside)
    for name in (
        f"../{outside.name}",
        str(outside),
        "pytorch_model.bin",
        ".safetensors",
        7,
    ):
        fails(
            ValueError,
            r"must name \*.safetensors files in its own folder, not paths. "
            f"Received: 'surprise' in {re.escape(repr(name))}",
            surprise=name,
        )


@pytest.mark.parametrize("weight_map", [None, {}, [], "model.safetensors"])
def test_an_index_without_a_weight_map(sharded, weight_map):
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(
        ValueError, match="must have a `weight_map` from keys to file names. Received"
    ):
        load_checkpoint(sharded)


def test_the_message_names_the_damaged_shard(sharded):
    file = sharded / "model-00003-of-00005.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match="`model-00003-of-00005.safetensors` is trunc"):
        load_checkpoint(sharded)


# Writing.


def test_the_safetensors_library_reads_our_files(tmp_path):
    rng = np.random.default_rng(3)
    arrays = {
        "matrix": rng.normal(size=(5, 7)).astype("float32"),
        "halves": rng.normal(size=(3, 2, 5)).astype("float16"),
        "brains": rng.normal(size=11).astype(ml_dtypes.bfloat16),
        "number": np.float32(13.0).reshape(()),
        "nothing": np.zeros((0, 3), "float32"),
    }
    kinds = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
    tensors = {
        key: Tensor(array.shape, kinds[array.dtype.name], lambda array=array: array)
        for key, array in arrays.items()
    }
    # A view with other strides, cast when it is written.
    tensors["transposed"] = Tensor((7, 5), "F16", lambda: arrays["matrix"].T)
    write_tensors(tmp_path / "model.safetensors", tensors)
    found = tensors_of(tmp_path)
    assert set(found) == set(tensors)
    for key, array in arrays.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array)
    transposed = arrays["matrix"].T.astype("float16")
    np.testing.assert_array_equal(found["transposed"], transposed)


def test_a_checkpoint_replaces_another(tmp_path):
    folder = tmp_path / "folder"
    save_checkpoint(load_checkpoint(CASE), folder, max_shard_size=3000)
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    (folder / "vocab.txt").write_text("[PAD]")
    save_checkpoint(load_checkpoint(CHECKPOINTS / "gpt2_causal_lm"), folder)
    names = {file.name for file in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "vocab.txt"}
    assert config_of(folder)["model_type"] == "gpt2"
    save_checkpoint(load_checkpoint(CASE), folder, max_shard_size=3000)
    assert not (folder / "model.safetensors").exists()
    assert set(tensors_of(folder)) == set(tensors_of(CASE))


def test_a_file_is_not_overwritten_by_a_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(
        NotADirectoryError,
        match="must be a folder, or not exist yet. Received: '.*file'",
    ):
        save_checkpoint(load_checkpoint(CASE), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_new", [True, False])
def test_interrupted_writing_changes_nothing(error, is_new, tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    if not is_new:
        save_checkpoint(load_checkpoint(CHECKPOINTS / "bert_masked_lm"), folder)
        (folder / "vocab.txt").write_text("[PAD]")
    before, model, written = contents(tmp_path), load_checkpoint(CASE), []

    def fail_at_the_third(path, tensors):
        if len(written) == 2:
            raise error
        write_tensors(path, tensors)
        written.append(path)

    monkeypatch.setattr(folder_module, "write_tensors", fail_at_the_third)
    with pytest.raises(type(error)):
        save_checkpoint(model, folder, max_shard_size=3000)
    assert len(written) == 2
    assert contents(tmp_path) == before
    assert folder.exists() != is_new
    assert not list(tmp_path.rglob("*.partial"))


def test_a_crash_while_renaming_never_leaves_a_mixture(tmp_path, monkeypatch):
    replace = folder_module.os.replace
    model = load_checkpoint(CASE)
    for fails_at in range(4):
        folder = tmp_path / str(fails_at)
        save_checkpoint(load_checkpoint(CHECKPOINTS / "bert_masked_lm"), folder)
        renamed = []

        def fail(one, other, fails_at=fails_at, renamed=renamed):
            if len(renamed) == fails_at:
                raise OSError("power failure")
            renamed.append(other)
            replace(one, other)

        with monkeypatch.context() as patch:
            patch.setattr(folder_module.os, "replace", fail)
            with pytest.raises(OSError, match="power failure"):
                save_checkpoint(model, folder, max_shard_size=5000)
        with pytest.raises(FileNotFoundError, match="has no config.json"):
            load_checkpoint(folder)
        # Nothing is lost: the remaining files are complete in the temporary folder.
        (work,) = folder.glob("*.partial")
        assert (work / "folder/config.json").exists()
        save_checkpoint(model, folder)
        assert {file.name for file in folder.iterdir()} == {
            "config.json",
            "model.safetensors",
        }


def test_leftovers_of_a_killed_process_are_removed(checkpoint):
    """They are as large as the model, and each killed process left one."""
    stage = checkpoint / ".checkpoint-a1b2c3d4.partial/folder"
    stage.mkdir(parents=True)
    (stage / "model.safetensors").write_bytes(b"half")
    model = load_checkpoint(checkpoint)
    save_checkpoint(model, checkpoint)
    assert not list(checkpoint.glob("*.partial"))
    again = load_checkpoint(checkpoint)
    for one, two in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two)
        )


def test_shards_are_at_most_max_shard_bytes(tmp_path):
    ones = {
        f"t{index}": Tensor((size,), "F32", lambda size=size: np.ones(size))
        for index, size in enumerate([3, 5, 11, 2, 2])
    }
    write_folder(tmp_path / "f", {"is": "config"}, ones, 32)
    index = json.loads((tmp_path / "f/model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 4 * 23}
    files = index["weight_map"]
    # The third is larger than the maximum, and has a file of its own.
    assert [files[key][6:11] for key in ones] == [
        "00001",
        "00001",
        "00002",
        "00003",
        "00003",
    ]
    assert set(tensors_of(tmp_path / "f")) == set(ones)
    assert json.loads((tmp_path / "f/config.json").read_text()) == {"is": "config"}

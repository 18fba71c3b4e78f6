"""Damaged checkpoint folders: refused by name, quickly, without side effects."""

import contextlib
import json
import os
import shutil
import warnings

import keras
import numpy as np
import pytest
from fuzz.harmless import MAX_MIB, SECONDS, peak_mib
from fuzz.json_mutations import json_mutations
from fuzz.mutations import mutations, rounds
from keras.src.backend.common import global_state
from parity.folders import CHECKPOINTS, split_header, with_header
from refusals import refuses

from keras_attn import models
from keras_attn.models import load_checkpoint

CONFIG, WEIGHTS = "config.json", "model.safetensors"
INDEX = "model.safetensors.index.json"
# Cheap to build, with the fields of every family.
FAMILIES = [
    ("bert_encoder", None),
    ("bert_encoder", "classifier"),
    ("roberta_encoder", None),
    ("gpt_body", None),
    ("gpt2_causal_lm", None),
    ("xlm_classifier", None),
    ("xlnet_classifier", None),
    ("vilbert_pretrainer", None),
    ("vit_classifier", None),
    ("deit_teacher", None),
    ("mae_pretrainer", None),
    ("swin_classifier", None),
    ("convnext_classifier", None),
    ("timm_vit", None),
    ("torchvision_fcn_resnet50", None),
    ("torchvision_vgg16", None),
    ("smp_unet_resnet50", None),
]


@contextlib.contextmanager
def harmless(folder, time_limit):
    """A load inside may fail only with an error that names a file."""
    before = peak_mib()
    names = dict(global_state.get_global_attribute("object_name_uids", {}))
    with warnings.catch_warnings(), time_limit(SECONDS):
        warnings.simplefilter("ignore", UserWarning)  # A new head.
        try:
            yield
        except (ValueError, FileNotFoundError) as error:
            text = str(error)
            assert any(name in text for name in (str(folder), *os.listdir(folder)))
            assert len(text) < 3000
            assert names == global_state.get_global_attribute("object_name_uids", {})
    assert not global_state.get_global_attribute("uninitialized_variables")
    assert global_state.get_global_attribute("stateless_scope") is None
    assert not global_state.get_global_attribute("name_scope_stack")
    assert peak_mib() - before < MAX_MIB


def _seeded_weights():
    """The weights of a tiny model built with seed 3."""
    keras.utils.set_random_seed(3)
    model = models.create(
        "bert_tiny", vocabulary_size=13, num_layers=1, hidden_dim=6, mlp_dim=7
    )
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


@pytest.fixture(scope="module", autouse=True)
def later_models_are_unchanged():
    before = _seeded_weights()
    yield
    for one, other in zip(_seeded_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


def _copy(case, tmp_path):
    return shutil.copytree(CHECKPOINTS / case, tmp_path / "checkpoint")


@pytest.mark.parametrize("case, task", FAMILIES)
def test_values_of_a_config(case, task, tmp_path, time_limit):
    config = _copy(case, tmp_path) / CONFIG
    texts = json_mutations(config.read_text(), seed=5, count=rounds(4))
    _load_mutations(config, (text.encode() for text in texts), time_limit, task)


def test_bytes_of_a_config(tmp_path, time_limit):
    config = _copy("swin_classifier", tmp_path) / CONFIG
    damaged = mutations(config.read_bytes(), seed=7, count=rounds(12))
    _load_mutations(config, damaged, time_limit)


def test_bytes_of_weights(tmp_path, time_limit):
    file = _copy("swin_classifier", tmp_path) / WEIGHTS
    data = file.read_bytes()
    start = len(data) - len(split_header(data)[1])
    # Any bytes are valid values, so most mutations are in the header.
    headers = mutations(data[:start], seed=11, count=rounds(40))
    _load_mutations(file, (header + data[start:] for header in headers), time_limit)
    _load_mutations(file, mutations(data, seed=13, count=rounds(12)), time_limit)


def test_values_of_a_header(tmp_path, time_limit):
    folder = _copy("swin_classifier", tmp_path)
    header, data = split_header((folder / WEIGHTS).read_bytes())
    damaged = json_mutations(header.decode(), seed=17, count=rounds(40))
    files = (with_header(text.encode(), data) for text in damaged)
    _load_mutations(folder / WEIGHTS, files, time_limit)


def _load_mutations(file, contents, time_limit, task=None):
    for content in contents:
        file.write_bytes(content)
        with harmless(file.parent, time_limit):
            load_checkpoint(file.parent, task)


def test_values_and_bytes_of_an_index(tmp_path, time_limit):
    index = _copy("bert_encoder_sharded", tmp_path) / INDEX
    data = index.read_bytes()
    damaged = [text.encode() for text in json_mutations(data.decode(), 19, rounds(20))]
    damaged += mutations(data, seed=23, count=rounds(12))
    _load_mutations(index, damaged, time_limit)


# Cases that random mutations don't find.


@pytest.mark.parametrize(
    "case, changes, field",
    [
        ("bert_encoder", {"hidden_size": 10**400}, "hidden_size"),
        ("bert_encoder", {"hidden_size": 10**6}, "hidden_size"),
        ("bert_encoder", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("bert_encoder", {"vocab_size": 10**8}, "vocab_size"),
        ("bert_encoder", {"max_position_embeddings": 10**8}, "max_position"),
        ("bert_encoder", {"layer_norm_eps": 1e308}, "layer_norm_eps"),
        ("bert_encoder", {"hidden_dropout_prob": 1.0}, "hidden_dropout_prob"),
        ("bert_classifier", {"id2label": None, "num_labels": 10**9}, "num_labels"),
        ("gpt2_body", {"n_layer": 10**9}, "n_layer"),
        ("xlm_encoder", {"gelu_activation": "no"}, "gelu_activation"),
        ("xlnet_encoder", {"clamp_len": 10**12}, "clamp_len"),
        ("vit_encoder", {"image_size": 10**6}, "image_size"),
        ("mae_pretrainer", {"decoder_num_hidden_layers": 10**6}, "decoder_num"),
        ("swin_classifier", {"depths": [2, 10**9, 1]}, "depths"),
        ("swin_classifier", {"window_size": 10**4}, "window_size"),
        ("swin_classifier", {"qkv_bias": "no"}, "qkv_bias"),
        ("swin_classifier", {"mlp_ratio": 1e308}, "mlp_ratio"),
        ("convnext_classifier", {"hidden_sizes": [10**7] * 4}, "hidden_sizes"),
        ("timm_vit", {"model_args": {"depth": 10**9}}, "depth"),
        ("timm_vit", {"model_args": []}, "model_args"),
        ("timm_vit", {"model_args": {"img_size": "large"}}, "img_size"),
        ("torchvision_fcn_resnet50", {"model_args": {"stem_dim": 10**9}}, "stem_dim"),
        ("maskrcnn_resnet50_fpn", {"model_args": {"head_dim": 10**9}}, "head_dim"),
        ("torchvision_vgg16", {"model_args": {"num_convs": [1, 10**9]}}, "num_convs"),
    ],
)
def test_numbers_beyond_the_weights_are_refused(
    case, changes, field, tmp_path, time_limit
):
    folder = _copy(case, tmp_path)
    fields = {**json.loads((folder / CONFIG).read_text()), **changes}
    fields = {name: value for name, value in fields.items() if value is not None}
    if changes.get("model_args") == []:
        fields["model_args"] = [1]
    (folder / CONFIG).write_text(json.dumps(fields))
    with harmless(folder, time_limit):
        with pytest.raises(
            ValueError, match=f"`{field}.*Received: .*folder="
        ) as raised:
            load_checkpoint(folder)
        raise raised.value


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, INDEX])
@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_irregular_files_are_refused(name, kind, tmp_path, time_limit):
    folder = _copy("bert_encoder_sharded", tmp_path)
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir() if kind == "folder" else os.mkfifo(folder / name)
    with time_limit(SECONDS), pytest.raises(ValueError, match=f"{name} must be a reg"):
        load_checkpoint(folder)


def test_files_that_are_too_large_are_not_parsed(tmp_path):
    folder = _copy("bert_encoder_sharded", tmp_path)
    before = peak_mib()
    for name in (CONFIG, INDEX):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(b'{"a": [' + b"[]," * 600_000 + b"[]]}")
        refuses(f"{name} must have at most 500000 ent", load_checkpoint, folder)
        with open(folder / name, "wb") as file:
            file.truncate(2**34)  # Takes no space on the disk.
        refuses(f"{name} must have at most 16777216 by", load_checkpoint, folder)
        (folder / name).write_bytes(kept)
    assert peak_mib() - before < MAX_MIB


def test_a_duplicate_tensor_is_refused(tmp_path):
    folder = _copy("bert_encoder", tmp_path)
    file = folder / WEIGHTS
    header, data = split_header(file.read_bytes())
    header = header.rstrip()
    key = next(key for key in json.loads(header) if key != "__metadata__")
    entry = json.dumps(json.loads(header)[key])
    header = header[:-1] + f",{json.dumps(key)}:{entry}}}".encode()
    file.write_bytes(with_header(header, data))
    refuses(f"{WEIGHTS}.*with the key '{key}' twice", load_checkpoint, folder)


@pytest.mark.parametrize("error", [OSError("disk failure"), KeyboardInterrupt()])
def test_an_interruption_leaves_no_uninitialized_variables(error, monkeypatch):
    from keras_attn.models.checkpoints.folder import Folder

    read, seen = Folder.read, []

    def fail(self, key):
        seen.append(key)
        if len(seen) == 3:
            raise error
        return read(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "read", fail)
        with pytest.raises(type(error)):
            load_checkpoint(CHECKPOINTS / "bert_encoder")
    assert not global_state.get_global_attribute("uninitialized_variables")
    with keras.StatelessScope():
        pass

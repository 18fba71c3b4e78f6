"""Folders by name: each fault gives the right files or an error with a name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import ask
from huggingface_hub import HfApi, constants, scan_cache_dir

from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import get_hub_name

WEIGHTS = bytes(range(251)) * 13
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": {}}',
    "vocab.txt": b"a\nb\n",
    "model.safetensors": WEIGHTS,
    "README.md": b"# A card",
    "pytorch_model.bin": b"pickled",
    "onnx/model.safetensors": b"another",
    "onnx/config.json": b"[]",
}
NAME = "hf://me/tiny"


def start_fetch(hub):
    """A process that fetches the folder into the same cache."""
    code = f"from keras_attn.files.hub import local_folder as get; get({NAME!r})"
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.address,
        "HF_HUB_CACHE": constants.HF_HUB_CACHE,
    }
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, text=True, stderr=pipe)


def read(folder):
    return {x.name: x.read_bytes() for x in folder.iterdir() if x.is_file()}


def is_whole(folder):
    names = ("config.json", "tokenizer.json", "vocab.txt", "model.safetensors")
    return read(folder) == {name: FILES[name] for name in names}


def test_cold(hub, capsys):
    commit = hub.add("me/tiny", FILES)
    folder = local_folder(NAME)
    assert is_whole(folder) and folder.name == commit
    assert get_hub_name(folder) == f"hf://me/tiny@{commit}"
    assert "Downloading hf://me/tiny: 4 files, 3.28 kB, to " in capsys.readouterr().err


def test_warm(hub, capsys):
    hub.add("me/tiny", FILES)
    first = local_folder(NAME)
    hub.log.clear()
    capsys.readouterr()
    assert local_folder(NAME) == first
    assert hub.log == [("GET", "/api/models/me/tiny")] and not capsys.readouterr().err


def test_revisions(hub):
    """A name without a revision means the newest commit, one with a commit that one."""
    old = hub.add("me/tiny", {**FILES, "config.json": b'{"is": "old"}'}, "v1.0")
    hub.branches["me/tiny"]["refs/pr/1"] = old
    new = hub.add("me/tiny", FILES)
    for revision in ("v1.0", old, "refs/pr/1"):
        found = local_folder(f"{NAME}@{revision}")
        assert found.name == old and read(found)["config.json"] == b'{"is": "old"}'
    assert local_folder(NAME).name == new
    newest = hub.add("me/tiny", {**FILES, "config.json": b'{"is": "newest"}'})
    hub.log.clear()
    assert local_folder(NAME).name == newest
    # Weights that did not change are not sent again.
    assert hub.transfers()[-1:] != ["model.safetensors"]
    assert "model.safetensors" not in hub.transfers()
    hub.log.clear()
    assert is_whole(local_folder(f"{NAME}@{new}")) and not hub.log


@pytest.mark.parametrize("how", ["offline", "unreachable", "503"])
def test_without_the_hub(hub, monkeypatch, how):
    """What was downloaded wholly is read; what was not is refused."""
    hub.add("me/tiny", FILES)
    hub.add("me/part", FILES)
    whole = local_folder(NAME)
    local_folder("hf://me/part", "tokenizer")
    if how == "offline":
        ask(monkeypatch, hub.address, offline=True)
        words = "HF_HUB_OFFLINE is set"
    elif how == "503":
        hub.status = 503
        words = "could not answer"
    else:
        ask(monkeypatch, "http://127.0.0.1:9")
        words = "cannot be reached"
    assert local_folder(NAME) == whole
    assert local_folder("hf://me/part", "tokenizer").name == whole.name
    for name in ("hf://me/part", "hf://me/never"):
        with pytest.raises(ConnectionError, match=f"{words}.*folder='{name}'"):
            local_folder(name)


@pytest.mark.parametrize("is_offline", [False, True])
@pytest.mark.parametrize("has_links", [True, False])
def test_downloaded_by_another_program(hub, monkeypatch, has_links, is_offline):
    """It is compared, also without the hub, whose checksums are the names of files."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", not has_links)
    hub.add("me/tiny", FILES)
    hub.wrong = True
    HfApi().snapshot_download("me/tiny", allow_patterns=["*.safetensors"])
    hub.wrong = False
    HfApi().snapshot_download("me/tiny")
    ask(monkeypatch, hub.address, offline=is_offline)
    if is_offline and not has_links:
        with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE is set"):
            local_folder(NAME)
        return
    with pytest.raises(ValueError, match=r"other bytes in model.safetensors$"):
        local_folder(NAME)
    ask(monkeypatch, hub.address)
    assert read(local_folder(NAME)).items() <= FILES.items()


def test_another_programs_right_files_need_no_hub(hub, monkeypatch):
    hub.add("me/tiny", FILES)
    HfApi().snapshot_download("me/tiny")
    ask(monkeypatch, hub.address, offline=True)
    assert read(local_folder(NAME)).items() <= FILES.items()


def test_token(hub, monkeypatch):
    hub.add("me/tiny", FILES)
    hub.token = "secret"
    with pytest.raises(PermissionError, match="hf auth login.*the hub answered 401"):
        local_folder(NAME)
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert is_whole(local_folder(NAME))


def test_gated(hub):
    hub.add("me/tiny", FILES)
    hub.gated.add("me/tiny")
    with pytest.raises(PermissionError, match="agree to its terms.*/me/tiny, and"):
        local_folder(NAME)


def test_killed_before_it_compared(hub, monkeypatch):
    """Files that are there, and whose comparison is not noted, are compared."""
    hub.add("me/tiny", FILES)
    hub.wrong = True
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("keras_attn.files.hub._compute_checksum", interrupt)
        local_folder(NAME)
    hub.wrong = False
    ask(monkeypatch, hub.address, offline=True)
    with pytest.raises(ValueError, match="other bytes in config.json, model.safe"):
        local_folder(NAME)


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_wrong", [True, False])
def test_two_processes_at_once(hub, is_wrong):
    """Each has the right files, or an error with the name; afterwards all is well."""
    hub.add("me/tiny", FILES)
    hub.most, hub.breaks, hub.wrong = 1000, 2, is_wrong
    processes = [start_fetch(hub) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        line = errors.strip().splitlines()[-1]
        assert process.returncode == is_wrong, errors
        assert not is_wrong or line.startswith("ValueError: `folder` must have"), errors
    hub.wrong = False
    assert is_whole(local_folder(NAME))


def test_missing(hub):
    hub.add("me/tiny", FILES)
    with pytest.raises(FileNotFoundError, match="a repository of the hub.*me/none'"):
        local_folder("hf://me/none")
    with pytest.raises(FileNotFoundError, match="a branch, a tag or a commit.*@v2'"):
        local_folder(f"{NAME}@v2")


def test_broken_transfer(hub):
    """The client goes on where it broke off; if it always breaks, nothing is read."""
    hub.add("me/tiny", FILES)
    hub.most, hub.breaks = 1000, 3
    assert is_whole(local_folder(NAME)) and hub.breaks == 0


def test_transfer_that_always_breaks(hub):
    hub.add("me/tiny", FILES)
    hub.most, hub.breaks = 1, 1000
    hub.most = 40  # Less than a part.
    with pytest.raises(ConnectionError, match="a transfer broke off.*folder='hf://"):
        local_folder(NAME)
    hub.most = 0
    assert is_whole(local_folder(NAME))


def test_wrong_bytes_of_what_decides_the_files(hub):
    """The configuration says which weights are read; it is compared first."""
    files = {**FILES, **dict.fromkeys(OPEN_CLIP, b"{}")}
    hub.add("me/tiny", files)
    hub.wrong = True
    with pytest.raises(ValueError, match=r"other bytes in config.json$"):
        local_folder(NAME)
    hub.wrong = False
    assert local_folder(NAME)


def test_short_file(hub):
    hub.add("me/tiny", FILES)
    hub.short = 1
    with pytest.raises(ConnectionError, match="Consistency check failed"):
        local_folder(NAME)
    hub.short = 0
    assert is_whole(local_folder(NAME))


def test_wrong_bytes(hub):
    hub.add("me/tiny", FILES)
    hub.wrong = True
    with pytest.raises(ValueError, match="other bytes in config.json, model.safe"):
        local_folder(NAME)
    hub.wrong = False
    assert is_whole(local_folder(NAME))
    # Also of a file that was compared before.
    (local_folder(NAME) / "config.json").resolve().write_bytes(b"[]")
    with pytest.raises(ValueError, match="other bytes in config.json"):
        local_folder(NAME)


def test_killed_process(hub, monkeypatch):
    """What a killed process left is not read."""
    hub.add("me/tiny", FILES)
    hub.most, hub.stalls = 2000, True
    process = start_fetch(hub)
    try:
        assert hub.stalled.wait(60)
    finally:
        process.kill()
        process.communicate()
    assert [*Path(constants.HF_HUB_CACHE).rglob("*.incomplete")]
    hub.resume.set()
    ask(monkeypatch, hub.address, offline=True)
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE"):
        local_folder(NAME)
    ask(monkeypatch, hub.address)
    hub.most, hub.stalls = 0, False
    assert is_whole(local_folder(NAME))


def test_cache_that_cannot_be_written(hub, monkeypatch):
    """Without the note files are compared each time, with it when they were written."""
    hub.add("me/tiny", FILES)
    path = local_folder(NAME) / "model.safetensors"
    time = path.stat().st_mtime_ns
    path.write_bytes(WEIGHTS[::-1])
    os.utime(path, ns=(time, time))
    assert local_folder(NAME) == path.parent
    shutil.rmtree(path.parents[2] / "keras_attn")
    monkeypatch.setattr("keras_attn.files.hub.write_atomically", refuse)
    with pytest.raises(ValueError, match=r"other bytes in model.safetensors$"):
        local_folder(NAME)
    assert is_whole(local_folder(NAME))


def refuse(*_):
    raise PermissionError


def test_a_damaged_note_is_no_note(hub):
    hub.add("me/tiny", FILES)
    folder = local_folder(NAME)
    (note,) = (folder.parents[1] / "keras_attn").iterdir()
    for content in (b"[]", b"{", b'{"config.json": "x"}', b"\xff"):
        note.write_bytes(content)
        assert is_whole(local_folder(NAME))


def test_the_clients_cache_stays_in_order(hub):
    """Its own commands find no fault with the notes."""
    hub.add("me/tiny", FILES)
    local_folder(NAME)
    found = scan_cache_dir(constants.HF_HUB_CACHE)
    assert [each.repo_id for each in found.repos] == ["me/tiny"] and not found.warnings


SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
INDEX = "model.safetensors.index.json"
OPEN_CLIP = ["open_clip_config.json", "open_clip_model.safetensors"]
CONFIG = {"config.json": b'{"model_type": "bert"}'}
OF_TIMM = {"config.json": b'{"architecture": "vit"}'}
DENSE = ["2_Dense/config.json", "2_Dense/model.safetensors"]
POOLING = ["modules.json", "1_Pooling/config.json"]


@pytest.mark.parametrize(
    "files, others, kind",
    [
        (["config.json", INDEX, *SHARDS], ["consolidated.safetensors"], "checkpoint"),
        (
            ["config.json", "model.safetensors", *POOLING, *DENSE],
            ["2_Dense/pytorch_model.bin", "openvino/config.json", "figures.png"],
            "checkpoint",
        ),
        (["config.json", "model.fp16.safetensors"], ["model.onnx"], "checkpoint"),
        ([*CONFIG, "model.safetensors", OPEN_CLIP[0]], OPEN_CLIP[1:], "checkpoint"),
        ([*OF_TIMM, *OPEN_CLIP], ["model.safetensors"], "timm"),
        (OPEN_CLIP, ["open_clip_pytorch_model.bin"], "checkpoint"),
        (["finetuned.json", "vocab.txt", "model.keras"], ["logs/events"], "checkpoint"),
        (
            ["tokenizer_config.json", "spiece.model", "config.json"],
            ["model.safetensors", INDEX, "1_Pooling/config.json"],
            "tokenizer",
        ),
        (
            ["adapter_config.json", "adapter_model.safetensors"],
            ["tokenizer.json", "optimizer.pt"],
            "adapter",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_only_what_is_read_is_downloaded(hub, files, others, kind):
    config = OF_TIMM if kind == "timm" else CONFIG
    hub.add("me/many", {x: config.get(x, b"12345") for x in [*files, *others]})
    folder = local_folder("hf://me/many", "checkpoint" if kind == "timm" else kind)
    found = (x for x in folder.rglob("*") if x.is_file())
    assert {x.relative_to(folder).as_posix() for x in found} == set(files)


@pytest.mark.parametrize(
    "names, kind, words",
    [
        (["config.json", "pytorch_model.bin"], "checkpoint", "pytorch_model.bin can"),
        (["config.json", "model.weights.h5"], "checkpoint", r"load_model\('hf://me/x'"),
        (["config.json"], "checkpoint", r"no \*.safetensors. Received"),
        (["adapter_model.safetensors"], "checkpoint", "an adapter: load its base"),
        (["a.txt"], "adapter", "adapter_model.safetensors. Received: .* has a.txt"),
        (["adapter_config.json", "adapter_model.bin"], "adapter", "model.bin can cont"),
        (["a.bin"], "preprocessing", "must hold preprocessor_config.json or config"),
        (["a.bin"], "tokenizer", "must hold a tokenizer. Received"),
    ],
)
def test_nothing_to_read(hub, names, kind, words):
    hub.add("me/x", dict.fromkeys(names, b"{}"))
    with pytest.raises((FileNotFoundError, ValueError), match=words):
        local_folder("hf://me/x", kind)
    assert not [path for _, path in hub.log if "/resolve/" in path]


@pytest.mark.parametrize(
    "name",
    ["hf://gpt2", "hf://a/b/c", "hf://a/b@", "hf:///b", "hf://a//b", "hf:/", "hf:a/b"],
)
def test_malformed_names(name):
    with pytest.raises(ValueError, match=f"hf://owner/name@rev.*folder='{name}'"):
        local_folder(name)


@pytest.mark.parametrize(
    "name", ["hf://../..", "hf://a/b--c", "hf://a b/c", "hf://a/."]
)
def test_names_that_the_hub_does_not_allow(hub, name):
    with pytest.raises(ValueError, match=f"the hub allows.*folder='{name}', and"):
        local_folder(name)
    assert not hub.log and not Path(constants.HF_HUB_CACHE).exists()


def test_what_is_no_name(tmp_path):
    assert local_folder(tmp_path) == tmp_path and get_hub_name(tmp_path) is None
    assert local_folder("hf/x") == Path("hf/x")
    # A path joins the slashes.
    with pytest.raises(ValueError, match="or hf://owner/name"):
        local_folder(Path("hf://gpt2"))


def test_an_answer_that_is_no_hubs(hub):
    """Such as the page of a network that wants a login."""
    hub.status = 200
    with pytest.raises(ConnectionError, match=f"cannot be reached.*'{NAME}', and"):
        local_folder(NAME)


def test_without_the_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'hf://me/tiny.*"keras-attn\[hub\]"'):
        local_folder(NAME)

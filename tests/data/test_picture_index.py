"""Indices of pictures: what is embedded when, what is kept, and what is left out."""

import json
import os
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from refusals import refuses

from keras_attn.data import default_index_file, index_pictures
from keras_attn.data.images import picture_index

COLORS = {"red": (200, 10, 20), "green": (10, 220, 10), "blue": (5, 60, 190)}


def embed(pictures):
    """Mean colors, of length 1."""
    means = np.stack([picture.reshape(-1, 3).mean(axis=0) for picture in pictures]) + 1
    return means / np.linalg.norm(means, axis=1, keepdims=True)


class Counted:
    """As `embed`, and counts its pictures, without the one that recognizes a model."""

    def __init__(self):
        self.count = -1

    def __call__(self, pictures):
        self.count += len(pictures)
        return embed(pictures)


def save(path, color, size=(7, 5)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "pictures"
    for name, color in COLORS.items():
        save(folder / "inner" / f"{name}.png", color)
    return folder


def update(folder, file):
    """The index, and the number of pictures that were embedded."""
    counted = Counted()
    index = index_pictures(folder, counted, file)
    assert index.num_embedded == counted.count
    return index


def test_the_most_similar_picture_is_first(folder):
    index = index_pictures(folder, embed)
    assert index.names == ["inner/blue.png", "inner/green.png", "inner/red.png"]
    assert index.embeddings.dtype == "float32" and len(index) == 3
    found = index.search(np.array([1.0, 0, 0]), 2)
    assert [each.name for each in found] == ["inner/red.png", "inner/green.png"]
    red = embed([np.array([[COLORS["red"]]])])
    assert found[0].score == pytest.approx(red[0, 0], abs=1e-6)
    assert len(index.search(np.array([1.0, 0, 0]), 9)) == 3
    # Equal scores are in the order of the names.
    assert [x.name for x in index.search(np.zeros(3))] == index.names
    refuses(r"`embedding` must have the shape \(3,\)", index.search, np.ones(2))
    refuses("`count` must be .*count=0", index.search, np.ones(3), 0)


def test_only_what_changed_is_embedded_again(folder, tmp_path):
    file = tmp_path / "new" / "index.npz"
    first = update(folder, file)
    assert first.num_embedded == 3
    written = file.read_bytes()
    again = update(folder, file)
    assert again.num_embedded == 0 and again.names == first.names
    np.testing.assert_array_equal(again.embeddings, first.embeddings)
    assert file.read_bytes() == written
    save(folder / "a.png", (1, 2, 200))
    save(folder / "inner" / "red.png", (90, 90, 20), size=(8, 5))
    (folder / "inner" / "blue.png").unlink()
    changed = update(folder, file)
    assert changed.num_embedded == 2
    assert changed.names == ["a.png", "inner/green.png", "inner/red.png"]
    plain = index_pictures(folder, embed)
    np.testing.assert_array_equal(changed.embeddings, plain.embeddings)
    # A removed picture alone rewrites the index, too.
    (folder / "a.png").unlink()
    assert update(folder, file).num_embedded == 0
    assert len(update(folder, file)) == 2
    assert [each.name for each in file.parent.iterdir()] == ["index.npz"]


def test_the_index_of_a_different_model_is_made_again(folder, tmp_path):
    file = tmp_path / "index.npz"
    index_pictures(folder, embed, file)
    # Another runtime of the same model.
    near = index_pictures(folder, lambda x: embed(x) + np.float32(1e-6), file)
    assert near.num_embedded == 0
    other = index_pictures(folder, lambda x: embed(x)[:, ::-1], file)
    assert other.num_embedded == 3
    wide = index_pictures(folder, lambda x: np.pad(embed(x), [(0, 0), (0, 1)]), file)
    assert wide.num_embedded == 3 and wide.embeddings.shape == (3, 4)


def test_what_is_no_picture_is_named_and_left_out(folder, tmp_path):
    (folder / "notes.txt").write_text("no picture")
    (folder / "broken.png").write_bytes(b"\x89PNG and nothing else")
    (folder / "folder.jpg").mkdir()
    file = tmp_path / "index.npz"
    for number in (3, 0):
        index = index_pictures(folder, embed, file)
        assert index.num_embedded == number and len(index) == 3
        assert list(index.skipped) == ["notes.txt", "broken.png", "folder.jpg"]
        assert "notes.txt must be a picture" in index.skipped["notes.txt"]
        assert "must be a complete JPEG, PNG" in index.skipped["broken.png"]
        assert "must be a regular file" in index.skipped["folder.jpg"]
    save(folder / "broken.png", COLORS["red"])
    assert len(index_pictures(folder, embed, file)) == 4


def test_files_of_other_kinds_are_counted(folder, tmp_path):
    for name in ("a.heic", "b.HEIC", "c.mov"):
        (folder / "inner" / name).write_bytes(b"x")
    expected = f"not used in {folder}: 3 files of other kinds (.heic 2, .mov 1)"
    for file in (None, default_index_file(folder), folder / "other.npz"):
        assert index_pictures(folder, embed, file).notes == [expected]
        if file is not None:
            assert index_pictures(folder, embed, file).notes == [expected]
            file.unlink()
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for each in [*folder.rglob("*.png"), *folder.rglob("*.mov")]:
            archive.write(each, each.relative_to(tmp_path))
        archive.writestr("__MACOSX/inner/._red.png", b"x")
    (note,) = index_pictures(tmp_path / "all.zip", embed).notes
    assert note.endswith("all.zip: 1 file of another kind (.mov 1), 1 hidden file")


def test_an_archive(folder, tmp_path):
    archive, file = tmp_path / "pictures.zip", tmp_path / "index.npz"

    def pack(names):
        with zipfile.ZipFile(archive, "w") as opened:
            for name in names:
                opened.write(folder / "inner" / f"{name}.png", f"x/{name}.png")

    pack(COLORS)
    index = update(archive, file)
    assert index.names == ["x/blue.png", "x/green.png", "x/red.png"]
    plain = index_pictures(folder, embed)
    np.testing.assert_array_equal(index.embeddings, plain.embeddings)
    save(folder / "inner" / "red.png", (0, 0, 9))
    pack(["red", "green"])
    assert update(archive, file).num_embedded == 1


def test_photos_are_upright(tmp_path):
    pixels = np.zeros((4, 6, 3), "uint8")
    pixels[:, :3] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # To be turned by 90 degrees clockwise.
    tmp_path.joinpath("photos").mkdir()
    Image.fromarray(pixels).save(tmp_path / "photos" / "a.png", exif=exif)
    seen = []
    index_pictures(tmp_path / "photos", lambda x: seen.extend(x) or embed(x))
    np.testing.assert_array_equal(seen[1], np.rot90(pixels, -1))


def test_names_that_are_not_text_and_damaged_orientations(tmp_path):
    folder, file = tmp_path / "pictures", tmp_path / "index.npz"
    strange = os.fsdecode(b"caf\xe9.png")
    try:
        save(folder / strange, COLORS["red"])
    except OSError:
        pytest.skip("the file system takes only Unicode")
    Image.new("RGB", (5, 4)).save(folder / "exif.png", exif=b"Exif\0\0XX\0*nothing")
    for number in (2, 0):
        index = update(folder, file)
        assert index.num_embedded == number
        assert index.names == [strange, "exif.png"]


def test_an_interrupted_index_keeps_what_is_done(folder, tmp_path):
    for number in range(20):
        save(folder / f"{number:02}.png", (number, 9, 200))
    file = tmp_path / "index.npz"

    def interrupt(done, total):
        assert total == 23
        if done == 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index_pictures(folder, embed, file, on_progress=interrupt)
    assert update(folder, file).num_embedded == 7


def test_a_killed_index_keeps_what_was_done_a_minute_before(
    folder, tmp_path, monkeypatch
):
    for number in range(20):
        save(folder / f"{number:02}.png", (number, 9, 200))
    file, now = tmp_path / "index.npz", [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(picture_index, "time", clock)
    sizes = []

    def watch(done, total):
        """What a process that is killed here leaves."""
        now[0] += 30
        if file.exists():
            with np.load(file) as arrays:
                sizes.append((done, len(arrays["embeddings"])))

    index = index_pictures(folder, embed, file, on_progress=watch)
    assert sizes == [(16, 16)]
    # Nothing is written twice.
    before = file.stat().st_ino
    assert update(folder, file).num_embedded == 0
    assert file.stat().st_ino == before and len(index) == 23


def test_a_file_that_is_no_index_is_kept(folder, tmp_path):
    file = tmp_path / "notes.npz"
    index_pictures(folder, embed, file)
    whole = file.read_bytes()
    with np.load(file) as arrays:
        about, embeddings = json.loads(arrays["about"].tobytes()), arrays["embeddings"]

    def index(embeddings=embeddings, **changes):
        packed = np.frombuffer(json.dumps({**about, **changes}).encode(), "uint8")
        np.savez(file, about=packed, embeddings=embeddings, probe=np.ones(3, "float32"))

    for damage in (
        lambda: file.write_text("my notes"),
        lambda: file.write_bytes(whole[: len(whole) // 2]),
        lambda: np.savez(file, x=np.ones(3)),
        lambda: np.savez(file, about=np.array([{}], object)),
        lambda: index(format="other"),
        lambda: index(embeddings * np.inf),
        lambda: index(names=["a"]),
        lambda: index(stamps=[]),
    ):
        damage()
        kept = file.read_bytes()
        refuses("notes.npz must be an index that", index_pictures, folder, embed, file)
        assert file.read_bytes() == kept


def test_what_cannot_be_indexed_is_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="`folder` must be an existing folder"):
        index_pictures(tmp_path / "missing", embed)
    (tmp_path / "empty").mkdir()
    refuses("`folder` must have images", index_pictures, tmp_path / "empty", embed)
    (tmp_path / "empty" / "a.jpg").write_text("text")
    file = tmp_path / "index.npz"
    with pytest.raises(ValueError, match="`folder` must have a picture .*1 bad ones"):
        index_pictures(tmp_path / "empty", embed, file)
    assert not file.exists()
    with pytest.raises(ValueError, match=r"a row for each picture, \(1, E\)"):
        index_pictures(folder, lambda x: np.ones(3))
    with pytest.raises(ValueError, match="`embed_pictures` must return finite numbers"):
        index_pictures(folder, lambda x: embed(x) * np.nan)


def test_where_a_command_keeps_the_index(tmp_path):
    assert default_index_file(tmp_path) == tmp_path / ".keras-attn-search.npz"
    archive = tmp_path / "a.zip"
    archive.touch()
    assert default_index_file(archive) == tmp_path / ".a.zip.keras-attn-search.npz"

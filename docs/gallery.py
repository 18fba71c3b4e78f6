"""Makes the pictures of `docs/lectures.md` again, by the commands of that page.

    make gallery                                    all that a few minutes make
    python docs/gallery.py it why_scale             these
    python docs/gallery.py --long                   also what takes longer: hours in all
    python docs/gallery.py --quick --output-dir x   what takes seconds, into a folder
    python docs/gallery.py --list                   each picture, its command and time

The commands run in `runs/gallery`, from where they see `examples/` and `docs/`, and a
picture is copied to `docs/images/` when its command has succeeded. Runs that resume go
on where they were. Curves of long runs are drawn from their stored results,
`docs/results/*.json`: small files with command, processor, date and seeds.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
QUICK, LONG = 0.5, 15  # Minutes: less is quick, more is long.
MOST_COLORS = 10_000  # Of a picture without photos.


@dataclass(frozen=True)
class Picture:
    """A picture of the page.

    Attributes:
        command: What makes it, as on the page.
        path: The picture that the command writes.
        minutes: About how long the command takes on two cores.
        after: Commands that come first, unless they have run.
        data: Name of the folder in `KERAS_ATTN_DATA` that it reads, if any.
    """

    command: str
    path: str
    minutes: float
    after: tuple[str, ...] = ()
    data: str = ""


STORED = "python examples/bottleneck.py --results docs/results"
STORED_PATH = "runs/bottleneck/scores_by_length.png"
BACKBONE = "python examples/shape_backbone.py"
CAPTIONS = "python examples/caption_shapes.py --seeds 1"
DETECTOR = "python examples/shape_detector.py"
# By their names in `docs/images`, in the order of the page.
PICTURES = {
    "bottleneck_copy": Picture(f"{STORED}/bottleneck_copy.json", STORED_PATH, 0.2),
    "alignment": Picture("keras-attn demo", "runs/demo/alignment.gif", 4),
    "caption": Picture(
        CAPTIONS,
        "runs/caption-shapes/show_attend_tell_soft_0/caption_1.png",
        20,
        after=(BACKBONE,),
    ),
    "caption_mistakes": Picture(
        "python examples/caption_mistakes.py",
        "runs/caption-shapes/show_attend_tell_soft_0/mistakes.png",
        21,
        after=(BACKBONE, CAPTIONS),
    ),
    "question": Picture(
        "python examples/answer_shapes.py",
        "runs/answer-shapes/show_ask_attend_answer/question_0.png",
        11,
        after=(BACKBONE,),
    ),
    "attention_layer": Picture(
        'keras-attn explain attention --tokens "[START] Big cat" --permutation "2 0 1" '
        "--output attention_layer.png",
        "attention_layer.png",
        0.2,
    ),
    "why_scale": Picture(
        "python examples/why_scale.py", "runs/why-scale/why_scale.png", 0.2
    ),
    "masks": Picture("keras-attn explain masks --output masks.png", "masks.png", 0.2),
    "positions": Picture(
        "keras-attn explain positions --output positions.png", "positions.png", 0.2
    ),
    "bottleneck_positions": Picture(
        f"{STORED}/bottleneck_positions.json", STORED_PATH, 0.2
    ),
    "three_ways": Picture(
        "python examples/three_ways.py", "runs/three-ways/three_ways.png", 1
    ),
    "far_positions": Picture(
        "python examples/far_positions.py", "runs/far-positions/far_positions.png", 3
    ),
    "attend_in_cnn": Picture(
        "python examples/attend_in_cnn.py",
        "runs/attend-in-cnn/attention.png",
        5,
        data="cifar10",
    ),
    "sagan": Picture(
        "python examples/sagan_shapes.py --seeds 1",
        "runs/sagan-shapes/samples.png",
        35,
    ),
    "it": Picture("python examples/it.py", "runs/it/it.png", 1),
    "model_sizes": Picture(
        "keras-attn list gpt --sizes --output model_sizes.png", "model_sizes.png", 0.2
    ),
    "model_scores": Picture(
        'keras-attn list "image classification" --score "ImageNet top-1" '
        "--output model_scores.png",
        "model_scores.png",
        0.2,
    ),
    "windows": Picture(
        "keras-attn explain windows --output windows.png", "windows.png", 0.2
    ),
    "four_tasks": Picture(
        "python examples/four_tasks.py",
        "runs/four-tasks/four_tasks.png",
        11,
        after=("python examples/shapes_masks.py",),
    ),
    "membranes": Picture(
        "python examples/segment_membranes.py",
        "runs/segment-membranes/segmentation.png",
        20,
        data="isbi_membrane",
    ),
    "denoised": Picture(
        "python examples/denoise_photos.py",
        "runs/denoise-photos/denoised.png",
        21,
        data="cifar10",
    ),
    "clip_shapes": Picture(
        "python examples/clip_shapes.py", "runs/clip-shapes/similarity.png", 15
    ),
    "vilbert_labels": Picture(
        "python examples/vilbert_shapes.py",
        "runs/vilbert-shapes/labels.png",
        90,
        after=(DETECTOR,),
    ),
    "reviews_feedback": Picture(
        "python examples/reviews_feedback.py",
        "runs/reviews/reward_against_kl.png",
        240,
        data="sst2",
    ),
}


def main():
    """Makes what the command line names."""
    arguments = parse_arguments()
    names = arguments.names or [
        name
        for name, picture in PICTURES.items()
        if picture.minutes <= (QUICK if arguments.quick else LONG) or arguments.long
    ]
    if arguments.list:
        for name in PICTURES if not arguments.names else names:
            print(f"{name:24}{PICTURES[name].minutes:5g} min  {PICTURES[name].command}")
        return
    folder = ROOT / "runs" / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("examples", "docs"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name, target_is_directory=True)
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    done, failed = set(), []
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name}: ", end="", flush=True)
        start = time.monotonic()
        if error := make(PICTURES[name], folder, done):
            failed.append(name)
            print(error)
            continue
        source = folder / PICTURES[name].path
        store(source, arguments.output_dir / f"{name}{source.suffix}")
        print(f"{time.monotonic() - start:.0f} s", flush=True)
    left_out = [name for name in PICTURES if name not in names]
    if left_out and not arguments.names:
        print(f"Left out, see --list: {', '.join(left_out)}")
    if failed:
        sys.exit(f"error: not made: {', '.join(failed)}")


def store(source: Path, target: Path) -> None:
    """Copies a picture; with 256 colors, a third of the size, unless it has photos."""
    if source.suffix == ".gif":
        shutil.copyfile(source, target)
        return
    picture = Image.open(source).convert("RGB")
    if picture.getcolors(MOST_COLORS) is not None:
        picture = picture.quantize(256, dither=Image.Dither.NONE)
    picture.save(target, optimize=True)


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("names", nargs="*", help="pictures; default: all but long ones")
    parser.add_argument("--long", action="store_true", help="also what takes long")
    parser.add_argument("--quick", action="store_true", help="what takes seconds")
    parser.add_argument("--list", action="store_true", help="show all, make nothing")
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=ROOT / "docs" / "images",
        help="folder for the pictures; default: docs/images",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(PICTURES):
        parser.error(f"no such picture: {', '.join(sorted(unknown))}; see --list")
    return arguments


def make(picture: Picture, folder: Path, done: set[str]) -> str:
    """Runs the commands of a picture; returns what went wrong, or "".

    Args:
        picture: The picture.
        folder: Where the commands run.
        done: Commands that have succeeded, which do not run again; extended.
    """
    if picture.data:
        place = Path(os.environ.get("KERAS_ATTN_DATA", ".")) / picture.data
        if not place.exists():
            return f"needs {picture.data}/ in the folder KERAS_ATTN_DATA"
    # The commands find what is beside this Python, in an environment or not.
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {**os.environ, "PATH": beside, "PYTHONPATH": str(ROOT)}
    if "KERAS_ATTN_DATA" in os.environ:
        settings["KERAS_ATTN_DATA"] = str(Path(os.environ["KERAS_ATTN_DATA"]).resolve())
    if picture.command not in done:
        (folder / picture.path).unlink(missing_ok=True)
    for command in (*picture.after, picture.command):
        if command in done:
            continue
        ended = subprocess.run(
            shlex.split(command),
            cwd=folder,
            env=settings,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            last = (ended.stderr.strip() or "no message").splitlines()[-1]
            return f"`{command}` failed: {last}"
        done.add(command)
    if not (folder / picture.path).is_file():
        return f"`{picture.command}` did not write {picture.path}"
    return ""


if __name__ == "__main__":
    main()

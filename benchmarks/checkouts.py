"""Compares the speed of two checkouts of keras_attn.

    git worktree add ../before <commit>
    python benchmarks/checkouts.py ../before . --rounds 9
    python benchmarks/checkouts.py ../before . --row "gpt2 generation"

The rows are the same as in `text.py` and `vision.py`. Each contestant runs the same
benchmark with keras_attn imported from its checkout, timed by `interleaved.py`.
"""

from pathlib import Path

import interleaved
import text
import vision

SCRIPTS = {row: module for module in (text, vision) for row in module.ROWS}
DEFAULT = ("bert forward", "vit training", "gpt2 generation")


def main():
    """Prints the milliseconds of both checkouts for each row, and their ratio."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument("before", type=Path, help="folder of the older checkout")
    parser.add_argument("after", type=Path, help="folder of the newer checkout")
    parser.add_argument("--row", choices=SCRIPTS, action="append", help="repeatable")
    parser.add_argument("--rounds", type=int, default=9, help="calls per checkout")
    arguments = parser.parse_args()
    paths = {
        name: str(getattr(arguments, name).resolve()) for name in ("before", "after")
    }
    for name, path in paths.items():
        if not Path(path, "keras_attn", "__init__.py").exists():
            parser.error(f"`{name}` must be a checkout of keras_attn. Received: {path}")
    print("| work | before | after | before / after |\n|---|---|---|---|")
    for row in arguments.row or DEFAULT:
        script = SCRIPTS[row]
        dtype = script.ROWS[row][0]
        serve = ["--serve", "ours", row, dtype]
        if arguments.small:
            serve.append("--small")
        times = interleaved.measure(
            script.__file__, dict.fromkeys(paths, serve), [row], arguments.rounds, paths
        )[row]
        before, after = times["before"], times["after"]
        print(
            f"| {row}, {dtype} | {before:.0f} ms | {after:.0f} ms "
            f"| {before / after:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

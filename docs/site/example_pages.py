"""A page for each example: its header, its picture if it has one, its source."""

import ast
import re

import links

EXAMPLES = links.ROOT / "examples"


def pages() -> dict[str, str]:
    """The text of each page by its path, and the gallery of pictures."""
    written = {}
    rows = []
    for path in sorted(EXAMPLES.glob("*.py")):
        source = path.read_text("utf-8")
        header = ast.get_docstring(ast.parse(source)) or ""
        first = header.partition("\n\n")[0].replace("\n", " ")
        rows.append(f"| [`{path.name}`]({path.stem}.md) | {first} |")
        written[f"examples/{path.stem}.md"] = "\n".join(
            [
                f"# {path.name}",
                "",
                first,
                "",
                "## What it does, and what came out",
                "",
                "```text",
                header,
                "```",
                "",
                "## Source",
                "",
                f'```python title="examples/{path.name}"',
                source.rstrip(),
                "```",
                "",
            ]
        )
    written["examples/index.md"] = "\n".join(
        [
            "# Examples",
            "",
            "Each is one file, whose header states the command, the machine, the time "
            "and the result.",
            "",
            "| | |",
            "|---|---|",
            *rows,
            "",
        ]
    )
    written["gallery.md"] = _gallery()
    return written


def _gallery() -> str:
    """All pictures of the guides, each with the page that says what it shows."""
    lines = [
        "# Gallery",
        "",
        "Each picture is made by a command, which stands on the page that explains it.",
        "",
    ]
    shown = set()
    for source, page in links.sources().items():
        text = (links.ROOT / source).read_text("utf-8")
        title = re.search(r"^# (.*)", text, re.M)
        for caption, picture in re.findall(
            r"!\[([^\]]+)\]\((images/\w+\.(?:png|gif))\)", text
        ):
            if picture not in shown and source.startswith("docs/"):
                shown.add(picture)
                name = title[1] if title else page
                lines += [
                    f"![{caption}]({picture}){{loading=lazy}}",
                    "",
                    f"*{caption}*: [{name}]({page})",
                    "",
                ]
    return "\n".join(lines)

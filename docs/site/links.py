"""Which page of the site each file of the repository becomes, and links between them.

Links in the repository lead to files, so that they work where the repository is read;
on the site the same links lead to pages.
"""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What is not at the same place below `docs/`. The README is the first page.
_ELSEWHERE = {
    "README.md": "index.md",
    "docs/index.md": "contents.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
}
# A link or picture outside of code: `](target)` or `](target#anchor)`.
_LINK = re.compile(r"(`[^`]*`)|\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^( *```.*?^ *```[^\n]*$)", re.M | re.S)


def page_of(path: str) -> str | None:
    """The page of a file, both from the root; None if the site does not have it.

    Args:
        path: Such as `"docs/design/layers.md"`, which is the page
            `"design/layers.md"`.
    """
    if path in _ELSEWHERE:
        return _ELSEWHERE[path]
    if not (ROOT / path).is_file():
        return None
    if re.fullmatch(r"examples/\w+\.py", path):
        return path.removesuffix(".py") + ".md"
    if re.fullmatch(
        r"docs/((design|layers)/)?\w+\.md|docs/images/\w+\.(png|gif)", path
    ):
        return path.removeprefix("docs/")
    return None


def sources() -> dict[str, str]:
    """The Markdown files that become pages, and these pages."""
    found = [
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md")
        for path in sorted(ROOT.glob(pattern))
    ]
    pages = {path: page_of(path) for path in found}
    return {path: page for path, page in pages.items() if page is not None}


def with_site_links(text: str, source: str) -> str:
    """A page with links to pages in place of links to files.

    Args:
        text: Markdown.
        source: The file that it is from, from the root.

    Raises:
        ValueError: If a link leads to a file that is not on the site.
    """
    page = page_of(source)
    if page is None:
        raise ValueError(f"`source` must become a page. Received: source={source!r}")
    here = posixpath.dirname(page)

    def replace(match: re.Match[str]) -> str:
        code, target, anchor = match.groups()
        if code or ":" in target:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        there = page_of(file)
        if there is None:
            raise ValueError(
                f"{source} links to a file without a page on the site. Received: "
                f"{target}"
            )
        return f"]({posixpath.relpath(there, here or '.')}{anchor or ''})"

    parts = _FENCE.split(text)
    parts[::2] = (_LINK.sub(replace, part) for part in parts[::2])
    return "".join(parts)


def with_wide_lists(text: str) -> str:
    """A page whose nested lists Python-Markdown reads, which wants four spaces.

    Below `1. ` others take three.

    Args:
        text: Markdown, of which only pages with numbered lists change.
    """
    if not re.search(r"^1\. ", text, re.M):
        return text
    parts = _FENCE.split(text)
    parts[::2] = (
        re.sub(r"^ {3,}(?=\S)", r"\g<0> ", part, flags=re.M) for part in parts[::2]
    )
    return "".join(parts)


def llms_text(pages: dict[str, str]) -> str:
    """The index of the site for language models, as llmstxt.org has it.

    Args:
        pages: The text of each page by its path.
    """
    readme = (ROOT / "README.md").read_text("utf-8")
    summary = readme.split("\n\n")[1].replace("\n", " ").replace("*", "")
    sections: dict[str, list[str]] = {}
    for path, text in sorted(pages.items()):
        folder = path.split("/")[0] if "/" in path else "guides"
        title = re.search(r"^(?:title: |# )(.*)", text, re.M)
        described = re.search(r'^description: "(.*)"$', text, re.M)
        url = re.sub(r"(index)?\.md$", "", path)
        line = f"- [{title[1] if title else path}]({url.removesuffix('/')}/)"
        sections.setdefault(folder, []).append(
            f"{line}: {described[1]}" if described and described[1] else line
        )
    parts = [f"# keras_attn\n\n> {summary}"]
    for folder in ("guides", *sorted(set(sections) - {"guides"})):
        parts.append(f"## {folder}\n\n" + "\n".join(sections.get(folder, [])))
    return "\n\n".join(parts) + "\n"

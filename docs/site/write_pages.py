"""Writes the pages of the site as Markdown, into `build/docs/pages`.

    python docs/site/write_pages.py             all
    python docs/site/write_pages.py --only layers models    all but API pages of others
    mkdocs build --strict                       then makes the site, in build/docs/site

What is written before the build needs no plugin, so that mkdocs and Zensical build the
same pages from one `mkdocs.yml`. `make docs` does both.
"""

import argparse
import shutil
import sys
from pathlib import Path

import api_pages
import example_pages
import layer_pictures
import links
import model_pages

HERE = Path(__file__).resolve().parent
OUTPUT = links.ROOT / "build" / "docs" / "pages"


def page_texts() -> dict[str, str]:
    """The text of each page of the site by its path, all but pictures."""
    pages = {}
    for source, page in links.sources().items():
        text = (links.ROOT / source).read_text("utf-8")
        pages[page] = links.with_wide_lists(links.with_site_links(text, source))
    pages |= layer_pictures.with_pictures(pages)
    return pages | model_pages.pages() | example_pages.pages() | api_pages.pages()


def write(output: Path, rooms: list[str] | None = None) -> int:
    """Writes all pages and what they show; returns the number of pages.

    Args:
        output: The folder, which is emptied first.
        rooms: The packages whose API pages are written. Default: all.
    """
    shutil.rmtree(output, ignore_errors=True)
    pages = page_texts()
    if rooms is not None:
        kept = tuple(f"api/{room}/" for room in rooms)
        pages = {
            path: text
            for path, text in pages.items()
            if not path.startswith("api/")
            or path.startswith(kept)
            or path.endswith("index.md")
        }
    for path, text in pages.items():
        file = output / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    shutil.copytree(links.ROOT / "docs" / "images", output / "images")
    shutil.copytree(HERE / "assets", output / "assets")
    layer_pictures.draw(output / "images" / "layers")
    (output / "llms.txt").write_text(links.llms_text(pages), "utf-8")
    return len(pages)


def main() -> None:
    """Writes the pages that the command asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", help="packages whose API pages to write")
    parser.add_argument("--output-dir", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    count = write(arguments.output_dir, arguments.only)
    sys.stdout.write(f"{count} pages in {arguments.output_dir}\n")


if __name__ == "__main__":
    main()

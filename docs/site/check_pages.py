"""Opens every page of the built site in headless Chromium, and follows every link.

    python docs/site/check_pages.py                      all that is in build/docs/site
    python docs/site/check_pages.py --only "layers/*"    these pages
    CHROMIUM=/path/to/chromium python docs/site/check_pages.py

At 380 and at 1,280 pixels, light and dark: no error in the console, no request to
anywhere else, nothing wider than the window. A name that is searched is the first
result. Needs Playwright's package alone, and any Chromium of the system.
"""

import argparse
import fnmatch
import functools
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

SITE = Path(__file__).resolve().parents[2] / "build" / "docs" / "site"
WIDTHS, SCHEMES = (380, 1280), ("light", "dark")
SEARCHED = 20
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# For containers: no sandbox, no GPU, little shared memory.
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-zygote"]
_PATIENCE = 60_000  # Milliseconds, on a busy machine.
_WIDTHS_OF = "[document.documentElement.scrollWidth, window.innerWidth]"


class _Page(HTMLParser):
    """The links, pictures and anchors of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for each element."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def find_pages(site: Path, pattern: str = "*") -> list[str]:
    """The paths of the pages of a site, such as `"layers/additive/index.html"`.

    Args:
        site: The folder.
        pattern: A shell pattern of the paths.
    """
    found = (path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html")))
    # A server sends this one at any address, so its links begin at the root.
    return [x for x in found if fnmatch.fnmatch(x, pattern) and x != "404.html"]


def broken_links(site: Path) -> list[str]:
    """What is wrong with the links and pictures within the site.

    Args:
        site: The folder.
    """
    pages = {path: _Page((site / path).read_text("utf-8")) for path in find_pages(site)}
    wrong = []
    for path, page in pages.items():
        for target in page.targets:
            url = urlsplit(urljoin(f"http://site/{path}", target))
            if url.netloc != "site" or url.scheme != "http":
                continue
            file = unquote(url.path).lstrip("/")
            if not file or file.endswith("/"):
                file += "index.html"
            if not (site / file).is_file():
                wrong.append(f"{path}: {target} leads to nothing")
            elif url.fragment and file in pages:
                if unquote(url.fragment) not in pages[file].anchors:
                    wrong.append(f"{path}: {target} has no such anchor")
    return wrong


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serves a site on this machine alone; yields its address.

    Args:
        site: The folder.
    """
    handler = functools.partial(_Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def look_at(browser: Any, address: str, pages: list[str]) -> list[str]:
    """Opens pages at each width and in each style; returns what is wrong.

    Args:
        browser: A browser of Playwright.
        address: Of the site.
        pages: Paths of the pages.
    """
    wrong: list[str] = []
    tab = browser.new_page()
    here = ""

    def report(text: str) -> None:
        wrong.append(f"{here}: {text}")

    def route(request: Any) -> None:
        if request.request.url.startswith((address, "data:", "blob:")):
            request.continue_()
        else:
            report(f"asks for {request.request.url}")
            request.abort()

    tab.route("**/*", route)
    tab.on("pageerror", lambda error: report(f"error {error}"))
    tab.on("console", lambda x: x.type == "error" and report(f"console: {x.text}"))
    for number, page in enumerate(pages):
        here = page
        # Another width and style from page to page, so that pages also load in each.
        order = [(width, scheme) for width in WIDTHS for scheme in SCHEMES]
        order = order[number % 4 :] + order[: number % 4]
        for step, (width, scheme) in enumerate(order):
            tab.set_viewport_size({"width": width, "height": 900})
            tab.emulate_media(color_scheme=scheme)
            if step == 0:
                tab.goto(address + page, timeout=_PATIENCE)
            wide, room = tab.evaluate(_WIDTHS_OF)
            if wide > room:  # Perhaps while the menu slides away.
                tab.wait_for_timeout(1000)
                wide, room = tab.evaluate(_WIDTHS_OF)
            if wide > room:
                report(f"{wide} pixels wide in {room}, {scheme}")
    return wrong


def search(browser: Any, address: str, names: dict[str, str]) -> list[str]:
    """Searches names; returns those whose page is not the first result.

    Args:
        browser: A browser of Playwright.
        address: Of the site.
        names: The address of the page of each name, from the root of the site.
    """
    wrong = []
    tab = browser.new_page()
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.goto(address, timeout=_PATIENCE)
    field = tab.locator("[data-md-component=search-query]")
    first = tab.locator(".md-search-result__item a").first
    field.click()
    for name, page in names.items():
        field.fill(name)
        field.press("End")  # Material listens to keys.
        try:
            first.wait_for(state="attached", timeout=_PATIENCE)
            tab.wait_for_timeout(400)  # Until the whole name was searched.
            found = urldefrag(str(first.get_attribute("href")))[0].partition("?")[0]
        except Exception as error:  # Of Playwright, of any kind.
            found = str(error).partition("\n")[0]
        if not urljoin(address, found).endswith(page):
            wrong.append(f"search for {name}: the first result is {found}")
    return wrong


def names_to_search(site: Path) -> dict[str, str]:
    """Names from all over the API, and the addresses of their pages.

    Args:
        site: The folder.
    """
    pages = [
        path.removesuffix("index.html")
        for path in find_pages(site, "api/*/*/index.html")
    ]
    chosen = pages[:: max(1, len(pages) // SEARCHED)][:SEARCHED]
    return {page.rstrip("/").rpartition("/")[2]: page for page in chosen}


def find_browser() -> str | None:
    """The path of a Chromium: `CHROMIUM`, or one of the system's; None without one.

    Raises:
        SystemExit: If `CHROMIUM` is not a program.
    """
    named = os.environ.get("CHROMIUM")
    found = [path for each in _BROWSERS if (path := shutil.which(each))]
    if named:
        found = [path] if (path := shutil.which(named)) else []
        if not found:
            sys.exit(f"error: CHROMIUM is not a program. Received: {named!r}")
    return found[0] if found else None


def main() -> None:
    """Checks the site, prints what is wrong, and fails if something is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="*", help="a pattern of pages to open")
    parser.add_argument("--site", type=Path, default=SITE)
    parser.add_argument("--flags", default="", help="further flags of the browser")
    arguments = parser.parse_args()

    wrong = broken_links(arguments.site)
    pages = find_pages(arguments.site, arguments.only)
    program = find_browser()
    if program is None:
        sys.stdout.write(
            "no page was opened, since there is no Chromium. Install one (Debian: apt "
            "install chromium), or set CHROMIUM to its path\n"
        )
    else:
        wrong += _opened(program, arguments.flags.split(), arguments.site, pages)
    for line in wrong:
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"{len(pages)} pages, {len(wrong)} things wrong\n")
    sys.exit(bool(wrong))


def _opened(program: str, flags: list[str], site: Path, pages: list[str]) -> list[str]:
    """What is wrong with pages and search in a browser."""
    from playwright.sync_api import sync_playwright

    with served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=[*_FLAGS, *flags]
        )
        wrong = look_at(browser, address, pages)
        wrong += search(browser, address, names_to_search(site))
        browser.close()
    return wrong


if __name__ == "__main__":
    main()

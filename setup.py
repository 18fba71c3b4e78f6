"""What the metadata says of the repository, if its address is known.

`repository` of `[tool.keras-attn]` in pyproject.toml is the one place of the address.
Until it is given, the package has no links and its README the links of the repository.
All else that is built is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
# A link or picture that leads to a file of the repository: `](docs/start.md`.
FILE = re.compile(r"(!?\[[^\]]*\]\()(?![a-z]+:|#)")


def urls(repository):
    """The links that package indexes show, by their names."""
    if not repository:
        return {}
    return {
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }


def description(text, repository, version):
    """The README with links to the files of this version."""
    if not repository:
        return text

    def absolute(match):
        kind = "raw" if match[0].startswith("!") else "blob"
        return f"{match[1]}{repository}/{kind}/v{version}/"

    return FILE.sub(absolute, text)


if __name__ == "__main__":
    settings = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))
    address = settings["tool"]["keras-attn"]["repository"]
    readme = (HERE / "README.md").read_text("utf-8")
    version = settings["project"]["version"]
    setup(
        project_urls=urls(address),
        long_description=description(readme, address, version),
        long_description_content_type="text/markdown",
    )

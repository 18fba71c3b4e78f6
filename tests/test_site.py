"""The documentation site: its pages before they are built, and what checks them."""

import importlib
import inspect
import re
import sys

import pytest
import recipes
from extras import needs
from recipes import DOCS, ROOT

from keras_attn import models
from keras_attn.docstrings.arguments import descriptions
from keras_attn.models.checkpoints.families import FAMILIES

WITH_EXAMPLES = [*sorted((DOCS / "layers").glob("*.md")), DOCS / "from_elsewhere.md"]


@pytest.fixture(scope="module")
def site():
    """Imports a script of `docs/site` by its name, with those beside it."""
    folder = str(ROOT / "docs" / "site")
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)


def test_every_page_but_those_of_names_is_in_the_navigation(site):
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    shown = re.findall(r"([\w./]+\.md)$", text, re.M)
    assert len(shown) == len({*shown})
    families = site("model_pages").families()
    rooms = site("api_pages").rooms()
    assert {*shown} == {
        *site("links").sources().values(),
        *(f"models/{family}.md" for family in families),
        *(f"api/{room}/index.md" for room in rooms),
        *("models/index.md", "examples/index.md", "api/index.md", "gallery.md"),
    }


def test_each_public_name_has_a_page_of_its_own(site):
    names = site("api_pages").public_names()
    assert {each.room for each in names} >= {"layers", "viz.callbacks", "tiling"}
    by_value = {id(each.value) for each in names if callable(each.value)}
    constants = [each for each in names if not callable(each.value)]
    pages = {each.page.lower() for each in names}  # As on disks that ignore case.
    assert len(pages) == len(by_value) + len(constants) > 500
    (plan,) = [each for each in names if (each.room, each.name) == ("models", "Plan")]
    assert plan.page == "api/models/Plan_class.md"


def test_links_lead_to_pages_and_to_nothing_else(site):
    links = site("links")
    text = "[a](../see.md#x) `[b](c.md)` ![d](../images/it.png)\n```\n[e](f)\n```\n"
    assert links.with_site_links(text, "docs/design/layers.md") == text
    text = "[a](docs/index.md) [b](examples/it.py) [c](https://x.org/y.md)"
    assert links.with_site_links(text, "README.md") == (
        "[a](contents.md) [b](examples/it.md) [c](https://x.org/y.md)"
    )
    with pytest.raises(
        ValueError, match=r"without a page on the site. Received: Makefile"
    ):
        links.with_site_links("[make](Makefile)", "README.md")
    with pytest.raises(ValueError, match=r"`source` must .* Received: source='x.md'"):
        links.with_site_links("", "x.md")
    for source in links.sources():
        links.with_site_links((ROOT / source).read_text("utf-8"), source)


def test_families_are_shown_with_the_libraries_that_save_them(site):
    model_pages = site("model_pages")
    named = [
        each
        for libraries in model_pages.SAVED_BY.values()
        for _, *model_types in libraries
        for each in model_types
    ]
    assert sorted(named) == sorted(FAMILIES)
    pages = model_pages.pages()
    sizes = "".join(page.partition("## Cost")[0] for page in pages.values())
    for name in models.list_models():
        assert sizes.count(f"\n| `{name}` |") == 1, name
    for picture, _ in model_pages.PICTURES.values():
        assert (ROOT / "docs" / "images" / picture).is_file()
    swin = pages["models/swin.md"]
    assert "x <- x + drop(attention(norm(x)))" in swin.partition("```text")[2]
    assert "| `swin_tiny` | 2+2+6+2 | 96 | 3+6+12+24 | 28,288,354 |" in swin
    assert "| transformers | `classifier`, `encoder` |" in swin
    assert "| `swin_tiny` | `hf://microsoft/swin-tiny-patch4-window7-224` |" in swin
    assert {*model_pages._costs()} <= {*models.list_models()}


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
def test_examples_of_layers_run(page, capsys):
    text = "\n".join(recipes.recipes_of(page))
    assert page.stem == "index" or text
    recipes.run(page)
    printed = capsys.readouterr().out
    for shapes in re.findall(r"  # (\(.*\))$", text, re.M):
        assert shapes in printed


def test_pictures_of_layers_are_those_that_are_asked_for(site, tmp_path, monkeypatch):
    pictures = site("layer_pictures")
    folder = tmp_path / "docs" / "layers"
    folder.mkdir(parents=True)
    (folder / "x.md").write_text("<!-- steps: dot -->\n<!-- masks: none -->\n")
    monkeypatch.setattr(site("links"), "ROOT", tmp_path)
    pictures.draw(tmp_path / "drawn")
    drawn = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert drawn == {"steps_dot.png", "steps_dot.html", "masks_none.png"}
    shown = pictures.with_pictures({"layers/x.md": "<!-- steps: dot -->"})
    for name in re.findall(r"images/layers/(\w+\.\w+)", shown["layers/x.md"]):
        assert name in drawn


def test_broken_links_are_found(site, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="a/">1</a><a href="a/#here">2</a><a href="a/#there">3</a>'
        '<img src="b.png"><a href="https://example.org/">4</a>'
    )
    (tmp_path / "a" / "index.html").write_text('<p id="here"><a href="../">up</a></p>')
    assert site("check_pages").broken_links(tmp_path) == [
        "index.html: a/#there has no such anchor",
        "index.html: b.png leads to nothing",
    ]


@pytest.mark.extra
@needs("griffe", "docs")
def test_what_is_rendered_is_what_help_shows(site):
    """Every argument and description, before mkdocstrings makes HTML of them."""
    griffe = importlib.import_module("griffe")
    extension = site("runtime_docstrings").RuntimeDocstrings()
    package = griffe.load(
        "keras_attn",
        search_paths=[ROOT],
        extensions=griffe.load_extensions(extension),
        docstring_parser="google",
    )
    missing = []
    for each in site("api_pages").public_names():
        if not each.path.startswith("keras_attn") or not callable(each.value):
            continue
        found = package[each.path.removeprefix("keras_attn.")]
        text = found.docstring.value if found.docstring else ""
        if inspect.getdoc(each.value) != text.replace("Other Parameters: Call", "Call"):
            missing.append(each.path)
        shown = [x.name for x in found.parameters if x.name != "self"]
        if not (inspect.isclass(each.value) and issubclass(each.value, Exception)):
            if shown != [*inspect.signature(each.value).parameters]:
                missing.append(f"{each.path}: {shown}")
        described = {
            entry.name.lstrip("*"): entry.description
            for section in found.docstring.parse("google", warnings=False)
            if section.kind.value == "parameters"
            for entry in section.value
        }
        known = descriptions(inspect.getdoc(each.value) or "")
        missing += [f"{each.path}: {name}" for name in known if not described.get(name)]
    assert missing == []

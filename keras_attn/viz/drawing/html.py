"""Pages of HTML with their data in them, which load nothing."""

import html
import json
import re
from typing import Any


class Page(str):
    """The text of a page of HTML. A notebook shows it, in a frame of its own."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # In a frame its styles and its keys are apart from those of the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self)}" '
            'style="width: 100%; height: 44em; border: 0"></iframe>'
        )


def fill_page(
    name: str, title: str, data: Any, style: str, body: str, script: str, **fields: str
) -> Page:
    """A page with a title, in a light and a dark style.

    Its script finds `data`, what `JSON.parse` makes of the data, `title` and `make`,
    which makes an element. Colors are `--text`, `--soft`, `--back`, `--line`, `--mark`.

    Args:
        name: The id of the element that has the data.
        title: The title, any text.
        data: What JSON can say.
        style: CSS.
        body: HTML, after the heading.
        script: JavaScript, run at the end.
        **fields: Values of further `{{field}}`s of `body`, which are HTML.
    """
    template = _PAGE.replace("{{style}}", style.strip("\n"))
    template = template.replace("{{body}}", body.strip("\n"))
    template = template.replace("{{script}}", script.strip("\n"))
    # "<" would let a text end the element; JSON has an escape for it.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    fields |= {
        "title": html.escape(title),
        "name": name,
        "data": text.replace("<", "\\u003c"),
    }
    # Once, so that a field's value is not read as another field.
    return Page(re.sub(r"\{\{(\w+)\}\}", lambda field: fields[field[1]], template))


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}}</title>
<style>
  :root { color-scheme: light dark; --text: #22262b; --soft: #5b6470; --back: #fff;
    --line: #d5d9de; --mark: #d9480f; }
  @media (prefers-color-scheme: dark) {
    :root { --text: #e6e8eb; --soft: #a3acb8; --back: #16191d; --line: #3a414a;
      --mark: #ff9457; }
  }
  body { font: 15px/1.5 system-ui, sans-serif; color: var(--text);
    background: var(--back); margin: 1em; }
  h1 { font-size: 1.15em; font-weight: 600; margin: .3em 0; max-height: 6em;
    overflow: auto; }
  h1, h2, p { overflow-wrap: anywhere; }
  .soft { color: var(--soft); }
  :focus-visible { outline: 3px solid var(--mark); }
{{style}}
</style>
</head>
<body>
<main>
<h1><bdi>{{title}}</bdi></h1>
{{body}}
</main>
<script type="application/json" id="{{name}}">{{data}}</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("{{name}}").textContent);
const byId = id => document.getElementById(id);
function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.append(text);
  if (className) element.className = className;
  return element;
}
{{script}}
</script>
</body>
</html>
"""

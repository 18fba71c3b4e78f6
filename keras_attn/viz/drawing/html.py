"""A page of HTML with its data in it, which loads nothing."""

import html
import json
import re
from typing import Any


def fill_page(template: str, title: str, data: Any) -> str:
    """A page from its text, in which `{{title}}` and `{{data}}` are replaced.

    Args:
        template: The page. `{{data}}` is inside of `<script type="application/json">`.
        title: The title, any text.
        data: What JSON can say.
    """
    # "<" would let a text end the element; JSON has an escape for it.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")
    fields = {"title": html.escape(title), "data": text}
    return re.sub(r"\{\{(\w+)\}\}", lambda field: fields[field[1]], template)

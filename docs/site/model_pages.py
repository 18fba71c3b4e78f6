"""A page for each family of models, from the head of its file and its cards.

Published figures come from the cards, counts and costs from `plan`, whose results
`count_costs.py` has stored.
"""

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from count_costs import COSTS

from keras_attn import models
from keras_attn.cli.published import spell_score, spell_size, spell_training
from keras_attn.files.hub_names import is_hub_name
from keras_attn.models.catalog.public_weights import PUBLIC_WEIGHTS
from keras_attn.models.catalog.registry import Entry, entry
from keras_attn.models.checkpoints.families import FAMILIES

# The picture of a guide that shows what a family does, and what it shows.
PICTURES = {
    "dalle": ("masks.png", "DALL·E's masks are three of these"),
    "detection": ("blood_cells.png", "Blood cells: the true ones, and those found"),
    "gpt": ("model_sizes.png", "Parameters of GPT, GPT-2, Megatron and GPT-3 by year"),
    "rnnsearch": ("alignment.gif", "Where the translator looked for each letter"),
    "sagan": ("attend_in_cnn.png", "Five photos, and what four positions attend to"),
    "show_ask_attend_answer": (
        "question.png",
        "A question, its two glimpses, the answers",
    ),
    "show_attend_tell": ("caption.png", "Where the captioner looks at each word"),
    "swin": ("windows.png", "Windows of a map before and after the shift"),
    "clip": ("clip_similarity.png", "Cosines of six pictures and six captions"),
    "transformer": (
        "positions.png",
        "The vectors of 50 positions, and their distances",
    ),
    "unet": ("membranes.png", "A slice, its true and predicted membranes"),
    "vilbert": ("word_regions.png", "For each word of a question, where it looks"),
    "vln_bert": ("vln_bert_ways.png", "Success of the ways that it chose on R2R"),
}
# The libraries that save weights of a family, with their `model_type`s if there are.
SAVED_BY = {
    "bert": [("transformers", "bert", "distilbert")],
    "clip": [("transformers", "clip"), ("open_clip",)],
    "convnext": [("transformers", "convnext"), ("timm",)],
    "deit3": [("timm",)],
    "detection": [("torchvision",)],
    "dvae": [("the authors' package",)],
    "fcn": [("torchvision",)],
    "gpt": [("transformers", "openai-gpt", "gpt2")],
    "mae": [("transformers", "vit_mae")],
    "resnet": [("torchvision",), ("transformers", "resnet")],
    "roberta": [("transformers", "roberta")],
    "siglip": [("transformers", "siglip")],
    "swin": [("transformers", "swin"), ("timm",)],
    "transformer_captioners": [("transformers", "vision-encoder-decoder")],
    "unet": [("segmentation-models-pytorch",)],
    "vgg": [("torchvision",)],
    "vilbert": [("the authors", "vilbert")],
    "vit": [("transformers", "vit", "deit"), ("timm",)],
    "vln_bert": [("save_checkpoint", "vln_bert")],
    "xlm": [("transformers", "xlm")],
    "xlnet": [("transformers", "xlnet")],
}
# What shares no code with ours and computes the same, for families without a library.
EQUATIONS = "the equations of the paper, in NumPy"
OUR_READING = ("the authors", "save_checkpoint")
COMPARED = {
    "deconvnet": "the same layers of PyTorch",
    "segnet": "the same layers of PyTorch",
    "sagan": "layers in NumPy and PyTorch, part by part",
    "transformer": "`torch.nn.Transformer`",
}


def families() -> dict[str, list[Entry]]:
    """The models of the registry by the file of their builder, the smallest first."""
    found: dict[str, list[Entry]] = {}
    for name in models.list_models():
        each = entry(name)
        found.setdefault(each.builder.__module__.rpartition(".")[2], []).append(each)
    return {family: sorted(each, key=_size) for family, each in sorted(found.items())}


def _size(each: Entry) -> int:
    costs = _costs().get(each.card.name, {})
    return costs.get("parameters") or each.card.parameters or 0


def _costs() -> dict[str, dict[str, Any]]:
    return json.loads(COSTS.read_text("utf-8"))


def pages() -> dict[str, str]:
    """The text of each page by its path."""
    found = families()
    written = {f"models/{family}.md": _page(family, found[family]) for family in found}
    rows = []
    for family, entries in found.items():
        title, about = _title(entries)
        names = ", ".join(f"`{each.card.name}`" for each in entries)
        rows.append(f"| [{title}]({family}.md) | {about} | {names} |")
    written["models/index.md"] = "\n".join(
        [
            "# Models",
            "",
            f"{len(models.list_models())} names of {len(found)} families. In Python "
            "`models.list_models()`, in a shell `keras-attn list`.",
            "",
            "| family | | names |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
    return written


def _title(entries: list[Entry]) -> tuple[str, str]:
    """Title and subject of a family: both sides of the first line of its file."""
    first = _head(entries).partition("\n\n")[0].replace("\n", " ")
    title, _, about = first.partition(": ")
    return title.rstrip("."), about


def _head(entries: list[Entry]) -> str:
    return inspect.getdoc(inspect.getmodule(entries[0].builder)) or ""


def _page(family: str, entries: list[Entry]) -> str:
    title, about = _title(entries)
    papers = sorted({(each.card.year, each.card.paper) for each in entries})
    lines = [f"# {title}", ""]
    if about:
        lines += [about[0].upper() + about[1:], ""]
    lines += [f"- {paper}" for _, paper in papers]
    if family in PICTURES:
        picture, caption = PICTURES[family]
        lines += ["", f"![{caption}](../images/{picture})"]
    lines += ["", "## What it computes", "", *_body(_head(entries))]
    lines += ["## Sizes", "", *_sizes(entries)]
    lines += ["## Cost", "", *_cost(entries)]
    lines += ["## Inputs and outputs", "", *_tensors(entries)]
    lines += _published(entries)
    lines += ["## Build it", "", *_build(family, entries)]
    lines += ["## Public weights", "", *_weights(family, entries)]
    lines += ["## Ship it", "", *_ship(entries)]
    lines += ["## Compared with", "", _compared(family), ""]
    return "\n".join(lines)


def _body(head: str) -> list[str]:
    """The head of the file: what is indented is a figure, the rest are sentences."""
    _, _, rest = head.partition("\n\n")
    lines = []
    for part in re.split(r"\n\n+", rest):
        if part.startswith(("    ", "Legend:", "Layers:")):
            same = textwrap.dedent(part)
            if lines[-2:] == ["```", ""] and part.startswith("    "):
                lines = [*lines[:-2], "", same, "```", ""]
            elif part.startswith("    "):
                lines += ["```text", same, "```", ""]
            else:
                lines += [re.sub(r"\nLayers:", "\n\nLayers:", part), ""]
        else:
            lines += [part, ""]
    return lines


def _sizes(entries: list[Entry]) -> list[str]:
    costs = _costs()
    lines = [
        "| name | layers | width | heads | published | counted |",
        "|---|---|---|---|---|---|",
    ]
    for each in entries:
        card = each.card
        sizes = (spell_size(x, "–") for x in (card.layers, card.width, card.heads))
        lines.append(
            f"| `{card.name}` | {' | '.join(sizes)} | {_count(card.parameters)} | "
            f"{_count(costs.get(card.name, {}).get('parameters'))} |"
        )
    return [*lines, ""]


def _count(number: float | None) -> str:
    return "–" if number is None else f"{number:,}"


def _cost(entries: list[Entry]) -> list[str]:
    costs = _costs()
    counted = [each.card.name for each in entries if each.card.name in costs]
    first = entries[0].card.name
    yours = f"For yours: `keras-attn plan {first} --batch 8`."
    if not counted:
        return [yours, ""]
    lines = [
        "Counted by [`plan`](../api/models/plan.md) for one row in float32, training "
        "with AdamW; nothing is allocated.",
        "",
        "| name | row | forward | weights | training step |",
        "|---|---|---|---|---|",
    ]
    for name in counted:
        cost = costs[name]
        row = f"{cost['sequence']} tokens" if cost["sequence"] > 1 else "one"
        if "image_size" in cost:
            row = f"{cost['image_size']} pixels"
        lines.append(
            f"| `{name}` | {row} | {_flops(cost['forward_flops'])} | "
            f"{_bytes(cost['weights'])} | {_bytes(cost['training_memory'])} |"
        )
    return [*lines, "", yours, ""]


def _flops(number: float) -> str:
    unit, size = ("T", 1e12) if number >= 1e12 else ("G", 1e9)
    return f"{number / size:.3g} {unit}FLOPs"


def _bytes(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e6:.3g} MB"


def _tensors(entries: list[Entry]) -> list[str]:
    lines = []
    for names, card in _alike(entries, lambda card: (card.inputs, card.outputs)):
        lines += [f"{names}:", ""] if len(entries) > len(names.split(", ")) else []
        lines += ["| | name | shape and meaning |", "|---|---|---|"]
        for side, tensors in (("in", card.inputs), ("out", card.outputs)):
            lines += [
                f"| {side} | `{name}` | {_cell(meaning)} |"
                for name, meaning in tensors.items()
            ]
        lines.append("")
    return lines


def _alike(
    entries: Iterable[Entry], of: Callable[[models.ModelCard], Any]
) -> list[tuple[str, models.ModelCard]]:
    """The names that have the same, with the card of the first."""
    groups: list[tuple[list[str], models.ModelCard]] = []
    for each in entries:
        for names, card in groups:
            if of(card) == of(each.card):
                names.append(f"`{each.card.name}`")
                break
        else:
            groups.append(([f"`{each.card.name}`"], each.card))
    return [(", ".join(names), card) for names, card in groups]


def _published(entries: list[Entry]) -> list[str]:
    """Training, scores and notes, of models that have them."""
    lines = []
    for names, card in _alike(entries, lambda card: card.training):
        if card.training is not None:
            lines.append(f"- {names}: {spell_training(card.training)}")
    rows = [
        f"| `{each.card.name}` | {_cell(spell_score(score))} |"
        for each in entries
        for score in each.card.scores
    ]
    notes = [
        f"- {names}: {card.notes}"
        for names, card in _alike(entries, lambda card: card.notes)
        if card.notes
    ]
    if lines:
        lines = ["## Published training", "", *lines, ""]
    if rows:
        lines += ["## Published scores", "", "| name | |", "|---|---|", *rows, ""]
    return [*lines, *(["## Notes", "", *notes, ""] if notes else [])]


def _build(family: str, entries: list[Entry]) -> list[str]:
    builders = sorted(
        name
        for name in models.__all__
        if name.startswith("build_")
        and getattr(models, name).__module__ == f"keras_attn.models.{family}"
    )
    links = ", ".join(f"[`{name}`](../api/models/{name}.md)" for name in builders)
    return [
        "```python",
        "from keras_attn import models",
        "",
        f'model = models.create("{entries[0].card.name}")',
        "```",
        "",
        f"Every argument of its builder can be passed to `create`. Builders: {links}.",
        "",
    ]


def _libraries(family: str) -> dict[str, list[str]]:
    """The libraries that save weights of a family, and the tasks they are read for."""
    found = {}
    for library, *model_types in SAVED_BY.get(family, ()):
        tasks = [FAMILIES[each].tasks for each in model_types if each in FAMILIES]
        found[library] = sorted({task for each in tasks for task in each})
    return found


def _weights(family: str, entries: list[Entry]) -> list[str]:
    libraries = _libraries(family)
    if not libraries:
        return [
            "No library publishes weights that `load_checkpoint` reads for it; train "
            "it, or load a `.keras` file of your own.",
            "",
        ]
    public = {
        each.card.name: PUBLIC_WEIGHTS[each.card.name]
        for each in entries
        if each.card.name in PUBLIC_WEIGHTS
    }
    named = (each.place for each in public.values() if is_hub_name(each.place))
    lines = ["```python", "from keras_attn import models", ""]
    lines += [f'model = models.load_checkpoint("{next(named, "folder")}")', "```", ""]
    if public:
        lines += ["| name | not fetched by us | |", "|---|---|---|"]
        for name, each in public.items():
            known = "" if each.is_checked else "; name from memory"
            lines.append(f"| `{name}` | `{each.place}` | {each.source}{known} |")
        lines.append("")
    lines += ["| a folder saved by | tasks |", "|---|---|"]
    for library, tasks in libraries.items():
        spelled = ", ".join(f"`{task}`" for task in tasks) or "that of the folder"
        lines.append(f"| {library} | {spelled} |")
    return [
        *lines,
        "",
        "See [what a folder holds](../checkpoints.md), [names](../hub.md).",
        "",
    ]


def _ship(entries: list[Entry]) -> list[str]:
    return [
        "```python",
        "from keras_attn import export",
        "",
        'export.export(model, "model.onnx")',
        "```",
        "",
        "`model.onnx` is for ONNX Runtime, `model.tflite` for LiteRT, a folder is a "
        "SavedModel. Each is run in its runtime and compared with Keras before the "
        "export reports success: [ship](../ship.md). The suite exports every family "
        "in every format at a tiny size (`tests/models/test_export_parity.py`).",
        "",
    ]


def _compared(family: str) -> str:
    libraries = [each for each in _libraries(family) if each not in OUR_READING]
    if libraries:
        names = ", ".join(libraries)
        return f"{names}: the same outputs from the same weights; `tests/parity`."
    compared = COMPARED.get(family, EQUATIONS)
    return f"{compared[0].upper()}{compared[1:]}; `tests/models`, `tests/families`."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

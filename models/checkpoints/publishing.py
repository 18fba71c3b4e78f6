"""`push_checkpoint`: a model, or LoRA weights alone, to the hub, with a card."""

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import keras

import keras_attn
from keras_attn.extras import requires_extra
from keras_attn.files.hub_errors import in_our_words
from keras_attn.files.hub_names import PREFIX, is_hub_name, parse_hub_name
from keras_attn.models.checkpoints.adapter_saving import save_lora
from keras_attn.models.checkpoints.saving import find_family, save_checkpoint

CARD = "README.md"
_MARK = (
    "<!-- Written by keras-attn. Without this line the next push keeps this file. -->"
)
# What of an earlier push is deleted if this one lacks it: it would be read, too.
_WEIGHTS = ("*.safetensors", "*.index.json", "adapter_config.json", "modules.json")
_TOKENIZERS = ("tokenizer.json", "added_tokens.json", "special_tokens_map.json")
_REPOSITORY = re.compile(r"([\w.-]+/)?[\w.-]+")
# Task to the hub's name for it, where that does not depend on the inputs.
_PIPELINES = {
    "masked_lm": "fill-mask",
    "next_sentence": "text-classification",
    "token_classifier": "token-classification",
    "span_qa": "question-answering",
    "sentence_encoder": "sentence-similarity",
    "causal_lm": "text-generation",
    "captioner": "image-to-text",
    "similarity": "zero-shot-image-classification",
    "segmenter": "image-segmentation",
    "detector": "object-detection",
    "instance_segmenter": "image-segmentation",
}
_OF_TEXTS = {"encoder": "feature-extraction", "classifier": "text-classification"}
_OF_IMAGES = {
    "encoder": "image-feature-extraction",
    "classifier": "image-classification",
}


class Saveable(Protocol):
    """What writes its files into a folder, as tokenizers do."""

    def save(self, folder: Path) -> None:
        """Writes the files."""


def push_checkpoint(
    model: keras.Model,
    name: str,
    *,
    adapter: str | None = None,
    tokenizer: Saveable | None = None,
    license: str | None = None,
    base_model: str | None = None,
    dataset: str | None = None,
    scores: Mapping[str, float] | None = None,
    tags: Sequence[str] = (),
    private: bool | None = None,
    dtype: str | None = None,
) -> str:
    """Writes a model, or LoRA weights alone, to the Hugging Face Hub.

    The files are those of `save_checkpoint`, or of `save_lora`, which the libraries
    named there read as well. They become one commit, in which a whole model takes the
    place of all safetensors that the repository had. The repository is made if there is
    none.

    A card says what the model is, how it is loaded and how good it is. The card of an
    earlier push is replaced, unless somebody has removed its line that says so.

    The client uploads with the token of `hf auth login` or of HF_TOKEN.

    Args:
        model: One that `save_checkpoint` writes, or `save_lora` with `adapter`.
        name: Of the repository, `hf://owner/name`.
        adapter: Name of the LoRA weights to write instead of the model, such as
            `"default"`.
        tokenizer: Whose `save` writes further files into the folder.
        license: The hub's name of the license, such as `"apache-2.0"`. Without one
            nobody may use the model.
        base_model: What the weights began as, a repository (`owner/name`) or its name
            on the hub. Default: `model.source`, where `load_checkpoint` read them.
        dataset: What it was trained on and measured on, such as `"glue"`.
        scores: What was measured, by name, such as `{"accuracy": 0.93}`; finite.
        tags: Further words by which the hub finds it.
        private: Whether only you see the repository, if this call makes it. Default: as
            your account says.
        dtype: `"float32"`, `"float16"` or `"bfloat16"`, of the weights in the files.
            Default: the dtype of each of the model's variables.

    Returns:
        The name with the new commit, `hf://owner/name@commit`, for `load_checkpoint` or
        `load_lora`.

    Raises:
        ValueError: If `name` or `base_model` is malformed, `scores` lack their
            `dataset` or are not finite, or the model cannot be written, as in
            `save_checkpoint` and `save_lora`; or the hub refuses the card.
        PermissionError: If the token may not write to the repository.
        ConnectionError: If the hub cannot be reached.
        ImportError: If the client is not installed (the extra `hub`).

    Example:
        Needs a token of the hub that may write:

        ```python
        from keras_attn import models

        classifier = models.load_checkpoint("checkpoints/reviews", "classifier")
        name, scores = "hf://me/reviews", {"accuracy": 0.93}
        options = {"license": "apache-2.0", "dataset": "glue", "scores": scores}
        models.push_checkpoint(classifier, name, **options)
        ```
    """
    repository, revision = parse_hub_name(name, "name")
    if revision is not None:
        raise ValueError(
            "`name` must be of a repository, without a revision: each push is a new "
            f"commit. Received: name={name!r}"
        )
    if isinstance(tags, str):
        raise TypeError(f"`tags` must be a list of texts. Received: tags={tags!r}")
    for measure, value in (scores or {}).items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(
                "`scores` must be finite numbers. "
                f"Received: scores={{{measure!r}: {value!r}}}"
            )
    if scores and dataset is None:
        raise ValueError(
            "`dataset` must name what `scores` were measured on. "
            f"Received: scores={dict(scores)!r}, dataset=None"
        )
    if adapter is not None and dtype is not None:
        raise ValueError(
            "`dtype` is for whole models; LoRA weights are written as they are. "
            f"Received: dtype={dtype!r}, adapter={adapter!r}"
        )
    with requires_extra("hub", "`push_checkpoint`"):
        from huggingface_hub import HfApi, constants
    if constants.is_offline_mode():
        raise ConnectionError(
            "A push needs the hub, and HF_HUB_OFFLINE is set: unset it. "
            f"Received: name={name!r}"
        )
    base_model = base_model or getattr(model, "source", None)
    if base_model is not None and not is_hub_name(base_model):
        if not _REPOSITORY.fullmatch(base_model):
            raise ValueError(
                "`base_model` must be a repository (owner/name) or its name on the "
                f"hub. Received: base_model={base_model!r}"
            )
    elif base_model is not None:
        parse_hub_name(base_model, "base_model")
    family, task = find_family(model, None)
    card = _Card(
        model=model,
        kind=family.model_type,
        task=task,
        repository=repository,
        is_adapter=adapter is not None,
        has_tokenizer=tokenizer is not None,
        license=license,
        base_model=base_model,
        dataset=dataset,
        scores=dict(scores or {}),
        tags=tuple(tags),
    )
    text = card.text()
    api = HfApi()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        if adapter is None:
            save_checkpoint(model, folder, dtype=dtype)
        else:
            save_lora(model, folder, name=adapter, base_model=base_model)
        if tokenizer is not None:
            tokenizer.save(folder)
        old = [*([] if adapter else _WEIGHTS), *(_TOKENIZERS if tokenizer else [])]
        with in_our_words(name, "name"):
            api.create_repo(repository, private=private, exist_ok=True)
            if _may_replace_card(api, repository):
                (folder / CARD).write_text(text, encoding="utf-8")
            commit = api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                commit_message=f"Written by keras-attn {keras_attn.__version__}",
                delete_patterns=old,
            )
    return f"{PREFIX}{repository}@{commit.oid}"


def _may_replace_card(api: Any, repository: str) -> bool:
    """Whether there is no card, or one that a push has written."""
    from huggingface_hub.errors import EntryNotFoundError

    try:
        path = api.hf_hub_download(repository, CARD)
    except EntryNotFoundError:
        return True
    return _MARK in Path(path).read_text("utf-8")


@dataclass(frozen=True)
class _Card:
    """What a card says, of the arguments of `push_checkpoint`.

    Attributes:
        kind: The model type of its family.
        task: Its task, as `load_checkpoint` names it.
        is_adapter: Whether it is of LoRA weights alone.
        has_tokenizer: Whether the folder has a tokenizer.
    """

    model: keras.Model
    kind: str
    task: str
    repository: str
    is_adapter: bool
    has_tokenizer: bool
    license: str | None
    base_model: str | None
    dataset: str | None
    scores: dict[str, float]
    tags: tuple[str, ...]

    @property
    def title(self) -> str:
        """The name without its owner."""
        return self.repository.partition("/")[2]

    @property
    def pipeline(self) -> str | None:
        """The hub's name for the task."""
        inputs = self.model.inputs
        is_image = len(inputs) == 1 and len(inputs[0].shape) == 4
        by_inputs = _OF_IMAGES if is_image else _OF_TEXTS
        return _PIPELINES.get(self.task) or by_inputs.get(self.task)

    def text(self) -> str:
        """The whole file: what the hub reads, and what people read."""
        return f"---\n{self._metadata()}\n---\n{_MARK}\n\n{self._body()}"

    def _metadata(self) -> str:
        from huggingface_hub import EvalResult, ModelCardData

        more: dict[str, Any] = {}
        if self.base_model is not None:
            is_name = is_hub_name(self.base_model)
            base = parse_hub_name(self.base_model)[0] if is_name else self.base_model
            relation = "adapter" if self.is_adapter else "finetune"
            more |= {"base_model": base, "base_model_relation": relation}
        if self.dataset is not None:
            more |= {"datasets": [self.dataset]}
        if self.scores:
            about: Any = {"dataset_type": self.dataset, "dataset_name": self.dataset}
            about["task_type"] = self.pipeline or "other"
            more["model_name"] = self.title
            more["eval_results"] = [
                EvalResult(metric_type=measure, metric_value=float(value), **about)
                for measure, value in self.scores.items()
            ]
        return ModelCardData(
            library_name="keras-attn",
            license=self.license,
            pipeline_tag=self.pipeline,
            tags=["keras", "keras-attn", *["lora"] * self.is_adapter, *self.tags],
            **more,
        ).to_yaml()

    def _body(self) -> str:
        """What it is, how it is loaded, its scores and its classes."""
        place, base = PREFIX + self.repository, self.base_model
        what = "LoRA weights for" if self.is_adapter else "A model of"
        lines = [f"# {self.title}", ""]
        lines += [f"{what} Keras: {self.kind}, {self.task.replace('_', ' ')}."]
        if base is not None:
            lines += [f"The weights began as `{base}`."]
        if not self.is_adapter:
            lines += [f"It has {self.model.count_params():,} parameters."]
        lines += ["", "```python", "from keras_attn import data, models", ""]
        if not self.is_adapter:
            lines += [f"model = models.load_checkpoint({place!r})"]
        else:
            loaded = base or "its base"
            if base is not None and not is_hub_name(base):
                loaded = PREFIX + base
            lines += [f"model = models.load_checkpoint({loaded!r})"]
            lines += [f"models.load_lora(model, {place!r})"]
        if self.has_tokenizer:
            lines += [f"tokenizer = data.load_text_tokenizer({place!r})"]
        lines += ["```"]
        if self.scores:
            lines += ["", f"| on {markdown_line(self.dataset or '')} | value |"]
            lines += ["|---|---|"]
            lines += [
                f"| {markdown_line(name)} | {value:.4g} |"
                for name, value in self.scores.items()
            ]
        if names := getattr(self.model, "class_names", None):
            lines += ["", "Classes: " + ", ".join(map(markdown_line, names))]
        return "\n".join([*lines, ""])


def markdown_line(text: str) -> str:
    """A text as one line of Markdown: a label may have several, and marks."""
    return re.sub(r"([\\`*<>\[\]|])", r"\\\1", " ".join(text.split()))

"""`push_checkpoint`: a model, or LoRA weights alone, to the hub, with a card."""

import tempfile
from collections.abc import Mapping, Sequence
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
    named there read as well. They become one commit; weights of an earlier push that
    this one lacks are deleted. The repository is made if there is none.

    A card says what the model is, how it is loaded and how good it is. The card of an
    earlier push is replaced, unless somebody has removed its line that says so.

    The client uploads with the token of `hf auth login` or of HF_TOKEN.

    Args:
        model: As for `save_checkpoint`, or for `save_lora` with `adapter`.
        name: Of the repository, `hf://owner/name`.
        adapter: Name of the LoRA weights to write instead of the model, such as
            `"default"`.
        tokenizer: Whose `save` writes further files into the folder.
        license: The hub's name of the license, such as `"apache-2.0"`. Without one
            nobody may use the model.
        base_model: What the weights began as, a repository (`owner/name`) or its name
            on the hub. Default: `model.source`, where `load_checkpoint` read them.
        dataset: What it was trained on and measured on, such as `"glue"`.
        scores: What was measured, by name, such as `{"accuracy": 0.93}`.
        tags: Further words by which the hub finds it.
        private: Whether only you see the repository, if this call makes it. Default: as
            your account says.
        dtype: As of `save_checkpoint`.

    Returns:
        The name with the new commit, `hf://owner/name@commit`, for `load_checkpoint` or
        `load_lora`.

    Raises:
        ValueError: If `name` is malformed, `scores` lack their `dataset`, or the model
            cannot be written, as in `save_checkpoint` and `save_lora`.
        PermissionError: If the token may not write to the repository.
        ConnectionError: If the hub cannot be reached.
        ImportError: If the client is not installed (the extra `hub`).

    Example:
        ```python
        models.push_checkpoint(
            classifier,
            "hf://me/reviews",
            tokenizer=tokenizer,
            license="apache-2.0",
            dataset="glue",
            scores={"accuracy": 0.93},
        )
        ```
    """
    repository, revision = parse_hub_name(name, "name")
    if revision is not None:
        raise ValueError(
            "`name` must be of a repository, without a revision: each push is a new "
            f"commit. Received: name={name!r}"
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
        from huggingface_hub import HfApi
    base_model = base_model or getattr(model, "source", None)
    family, task = find_family(model, None)
    api = HfApi()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        if adapter is None:
            save_checkpoint(model, folder, dtype=dtype)
        else:
            save_lora(model, folder, name=adapter, base_model=base_model)
        if tokenizer is not None:
            tokenizer.save(folder)
        metadata = _metadata(
            model,
            task,
            repository,
            adapter,
            license,
            base_model,
            dataset,
            scores,
            tags,
        )
        kind = f"{family.model_type}, {task.replace('_', ' ')}"
        card = _card(model, kind, repository, adapter, tokenizer, base_model, scores)
        with in_our_words(name, "name"):
            api.create_repo(repository, private=private, exist_ok=True)
            if _may_replace_card(api, repository):
                text = f"---\n{metadata}\n---\n{_MARK}\n\n{card}"
                (folder / CARD).write_text(text, encoding="utf-8")
            commit = api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                commit_message=f"Written by keras-attn {keras_attn.__version__}",
                delete_patterns=None if adapter else ["*.safetensors", "*.index.json"],
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


def _metadata(
    model, task, repository, adapter, license, base_model, dataset, scores, tags
) -> str:
    """What the hub reads of the card, as YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    is_image = len(model.inputs) == 1 and len(model.inputs[0].shape) == 4
    pipeline = _PIPELINES.get(task) or (_OF_IMAGES if is_image else _OF_TEXTS).get(task)
    more = {}
    if base_model is not None:
        known = is_hub_name(base_model)
        more["base_model"] = parse_hub_name(base_model)[0] if known else base_model
        more["base_model_relation"] = "adapter" if adapter else "finetune"
    if scores:
        more["model_name"] = repository.partition("/")[2]
        more["eval_results"] = [
            EvalResult(
                task_type=pipeline or "other",
                dataset_type=dataset,
                dataset_name=dataset,
                metric_type=measure,
                metric_value=float(value),
            )
            for measure, value in scores.items()
        ]
    return ModelCardData(
        library_name="keras-attn",
        license=license,
        pipeline_tag=pipeline,
        tags=["keras", "keras-attn", *(["lora"] if adapter else []), *tags],
        datasets=None if dataset is None else [dataset],
        **more,
    ).to_yaml()


def _card(model, kind, repository, adapter, tokenizer, base_model, scores) -> str:
    """What people read: what it is, how it is loaded, its scores and classes."""
    title, place = repository.partition("/")[2], repr(PREFIX + repository)
    what = "LoRA weights of a model" if adapter else "A model"
    lines = [f"# {title}", "", f"{what} of Keras ({kind})."]
    if base_model is not None:
        lines[-1] += f" Its weights began as `{base_model}`."
    if adapter is None:
        lines[-1] += f" It has {model.count_params():,} parameters."
    base = f'models.load_checkpoint("{base_model or "the base"}")' if adapter else ""
    lines += ["", "```python", "from keras_attn import data, models", ""]
    if adapter:
        lines += [f"model = {base}", f"models.load_lora(model, {place})"]
    else:
        lines += [f"model = models.load_checkpoint({place})"]
    if tokenizer is not None:
        lines += [f"tokenizer = data.load_text_tokenizer({place})"]
    lines += ["```"]
    if scores:
        lines += ["", "| measured | value |", "|---|---|"]
        lines += [f"| {measure} | {value:.4g} |" for measure, value in scores.items()]
    if names := getattr(model, "class_names", None):
        lines += ["", "Classes: " + ", ".join(" ".join(x.split()) for x in names)]
    return "\n".join([*lines, ""])

"""Differences between a folder's settings and its `tokenizer.json`.

transformers applies some fields of `tokenizer_config.json` to the components of
`tokenizer.json`: so do we.
"""

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_attn.data.text.added_tokens import AddedToken
from keras_attn.data.text.text_tokenizer import tokenizers_library
from keras_attn.data.text.tokenizer_files import FurtherSettingsError
from keras_attn.data.text.tokenizer_json import CLIP_DECODER, NOT_UNIGRAM, template_json
from keras_attn.files.reading import shortened, shown

_BERT_FLAGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
# Normalization changes no special token, so `normalized` does not matter.
# `lstrip` is applied.
_COMPARED_FLAGS = ("single_word", "rstrip", "special")
# Classes of transformers that read a `tokenizer.json` as it is.
_GENERIC = ("pretrained", "tokenizersbackend", "openaigpt")
# Where classes of transformers put a blank before words if not before each text.
_WITHOUT_PREFIX = dict.fromkeys(
    "albert barthez bigbird camembert codellama llama rembert xglm xlmroberta".split(),
    "never",
) | {"debertav2": "first"}
# A sequence's field with its steps.
_STEPS = ("normalizers", "pretokenizers", "processors", "decoders")


def with_settings(
    content: Mapping[str, Any],
    settings: Mapping[str, Any],
    kind: str | None,
    is_packed: bool = True,
) -> dict[str, Any]:
    """The content of a `tokenizer.json` with the settings beside it applied.

    Those that transformers applies: a `tokenizer.json` has its own rows, and its
    generic classes read all of it as it is.

    Args:
        content: The content.
        settings: Of `tokenizer_config.json`, and `lower_case_first`: whether text is
            lower-cased before anything else, as a sentence folder may say.
        kind: Of the tokenizer, as `load_text_tokenizer` names it; None for another.
        is_packed: Whether the content comes from a file, not from plain files.

    Raises:
        ValueError: If a token to add to each row is not in the vocabulary.
    """
    content = copy.deepcopy(dict(content))
    name = class_name(settings) or kind
    as_it_is = is_packed and name in _GENERIC
    for step in iterate_steps(content.get("normalizer")):
        if step.get("type") == "BertNormalizer" and not as_it_is:
            for key, field in _BERT_FLAGS.items():
                if key in settings:
                    step[field] = settings[key]
    prefix = settings.get("add_prefix_space")
    if prefix is not None:
        for step in iterate_steps(content.get("pre_tokenizer")):
            if step.get("type") == "ByteLevel" and not as_it_is and name != "clip":
                step["add_prefix_space"] = prefix
            elif step.get("type") == "Metaspace" and name in _WITHOUT_PREFIX:
                without = _WITHOUT_PREFIX[name]
                # Older files have a flag instead of the scheme.
                older = step.pop("add_prefix_space", True)
                scheme = step.get("prepend_scheme", "always" if older else "never")
                step["prepend_scheme"] = scheme
                if prefix != (scheme != without):
                    step["prepend_scheme"] = "always" if prefix else without
    normalizer = content.get("normalizer")
    if settings.get("lower_case_first") and not any(
        step.get("type") == "Lowercase" or step.get("lowercase") is True
        for step in iterate_steps(normalizer)
    ):
        before = [{"type": "Lowercase"}, *([normalizer] if normalizer else [])]
        content["normalizer"] = {"type": "Sequence", "normalizers": before}
    if name == "clip":
        content["decoder"] = CLIP_DECODER
    if kind == "gpt2" and not is_packed:
        content["post_processor"] = _rows_with(content, settings)
    return content


def class_name(settings: Mapping[str, Any]) -> str:
    """The kind of a class of transformers, such as "bert" for `BertTokenizerFast`."""
    name = (settings.get("tokenizer_class") or "").removesuffix("Fast")
    return name.removesuffix("Tokenizer").lower()


def _rows_with(content, settings) -> dict[str, Any]:
    """Rows with the start and the end token, where the settings want them."""
    ids = get_vocabulary(content)
    single: list[tuple[str, int]] = [("A", 0)]
    pair: list[tuple[str, int]] = [("A", 0), ("B", 1)]
    for key, role, is_first in (
        ("add_bos_token", "bos_token", True),
        ("add_eos_token", "eos_token", False),
    ):
        token = settings.get(role)
        if not settings.get(key) or token is None:
            continue
        if token not in ids:
            raise ValueError(
                f"`{role}` must be in the vocabulary if `{key}` is true. "
                f"Received: {role}={shown(token)}"
            )
        if is_first:
            single = [(token, 0), *single]
            pair = [(token, 0), ("A", 0), (token, 1), ("B", 1)]
        else:
            single = [*single, (token, 0)]
            middle = pair.index(("A", 0)) + 1
            pair = [*pair[:middle], (token, 0), *pair[middle:], (token, 1)]
    return template_json(single, pair, ids)


def get_vocabulary(content: Mapping[str, Any]) -> dict[str, int]:
    """The id of each piece and added token of a `tokenizer.json`."""
    vocabulary = (content.get("model") or {}).get("vocab")
    if isinstance(vocabulary, list):
        pieces = [each[0] for each in vocabulary if isinstance(each, list) and each]
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
    added = content.get("added_tokens") or []
    return {
        **(vocabulary if isinstance(vocabulary, dict) else {}),
        **{each["content"]: each["id"] for each in added},
    }


def iterate_steps(component: Any) -> Iterator[dict[str, Any]]:
    """The steps of a component, of which a sequence has several."""
    if not isinstance(component, dict):
        return
    nested = next((component[name] for name in _STEPS if name in component), None)
    if not isinstance(nested, list):
        yield component
        return
    for each in nested:
        yield from iterate_steps(each)


def check_says_no_more(
    path: Path,
    content: Mapping[str, Any],
    plain: Mapping[str, Any],
    added: Iterable[AddedToken],
) -> None:
    """Raises if a folder has settings that its plain files do not have.

    Args:
        path: The `tokenizer.json`, or the plain file, for the message.
        content: The content of `tokenizer.json`, or without one `plain`, with the
            folder's settings.
        plain: What the plain files say, as a `tokenizer.json`.
        added: The added tokens of the folder.

    Raises:
        FurtherSettingsError: The message names the first difference.
    """
    known = {each["content"]: each for each in plain["added_tokens"]}
    for token in added:
        other = known.get(token.content)
        if (
            other is None
            or token.index not in (None, other["id"])
            or any(token.flags[name] != other[name] for name in _COMPARED_FLAGS)
        ):
            raise _says_more(path, "an added token", token.content)
    for name in ("normalizer", "pre_tokenizer"):
        ours, theirs = (
            [_significant(step) for step in iterate_steps(each.get(name))]
            for each in (plain, content)
        )
        if theirs != ours and not (
            plain["model"]["type"] in ("Unigram", NOT_UNIGRAM)
            and _but_for_blanks(theirs) == _but_for_blanks(ours)
        ):
            raise _says_more(path, name, content.get(name))
    decoder = content.get("decoder")
    if plain["model"]["type"] == "WordPiece" and decoder not in (
        None,
        plain["decoder"],
    ):
        raise _says_more(path, "decoder", decoder)
    if _rows(content, plain) != _rows(plain, plain):
        raise _says_more(path, "post_processor", content.get("post_processor"))
    ours, theirs = plain["model"], content.get("model") or {}
    options, others = _options(ours), _options(theirs)
    for name in sorted({*options, *others}):
        if options.get(name) != others.get(name):
            raise _says_more(path, f"model.{name}", others.get(name))
    if not _same_pieces(content, ours):
        raise _says_more(path, "model.vocab", "other pieces")
    if _pairs(ours.get("merges")) != _pairs(theirs.get("merges")):
        raise _says_more(path, "model.merges", "other merges")


def get_templates(
    post_processor: Any,
) -> tuple[list[tuple[int | str, int]], list[tuple[int | str, int]]]:
    """The rows of one text, and of two: "A", "B" or a special id, and its segment.

    The library itself is asked, with texts of one token.

    Args:
        post_processor: Of a `tokenizer.json`; None for none.

    Raises:
        ValueError: If it repeats a text, or puts the second first.
    """
    library = tokenizers_library()
    model = {"type": "WordLevel", "vocab": {"A": 0, "B": 1}, "unk_token": "A"}
    probe = read_by_library(
        library, {"version": "1.0", "model": model, "post_processor": post_processor}
    )
    rows = []
    for texts in (("A",), ("A", "B")):
        encoded = probe.encode(*texts)
        row = [
            (index if special else "AB"[index], segment)
            for index, segment, special in zip(
                encoded.ids, encoded.type_ids, encoded.special_tokens_mask, strict=True
            )
        ]
        if tuple(part for part, _ in row if isinstance(part, str)) != texts:
            raise ValueError(
                "`post_processor` in tokenizer.json must put each text into a row "
                f"once, in their order. Received: {shown(post_processor)}"
            )
        rows.append(row)
    return rows[0], rows[1]


def read_by_library(library: Any, content: Mapping[str, Any]) -> Any:
    """The library's tokenizer of a content.

    Args:
        library: The module `tokenizers`.
        content: Of a `tokenizer.json`.

    Raises:
        ValueError: If the library does not read it.
    """
    try:
        return library.Tokenizer.from_str(json.dumps(content))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # The library's panics are not `Exception`s.
        raise ValueError(
            "tokenizer.json must be one that the library `tokenizers` reads. "
            f"Received: {shortened(error, 300)}"
        ) from error


def _rows(content, plain):
    """The templates of a content, with segments where the plain ones have them."""
    templates = get_templates(content.get("post_processor"))
    used = get_templates(plain["post_processor"])
    has_segments = any(segment for template in used for _, segment in template)
    return [
        [(part, segment * has_segments) for part, segment in template]
        for template in templates
    ]


def _says_more(path: Path, name: str, value: Any) -> FurtherSettingsError:
    return FurtherSettingsError(
        "This folder must have only the settings of this kind of tokenizer; "
        f"`load_text_tokenizer` reads all that it says. Received: {str(path)!r}, "
        f"{name}={shown(value)}"
    )


def _significant(step: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a step that change ids, without those at their default."""
    defaults = {
        "trim_offsets": step.get("trim_offsets"),
        "use_regex": True,
        "strip_accents": None,
        "clean_text": True,
        "split": True,
        "prepend_scheme": "always",
    }
    if step.get("type") == "Metaspace" and step.get("add_prefix_space") is True:
        defaults["add_prefix_space"] = True
    if step.get("type") == "Split":
        pattern = step.get("pattern")
        pattern = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(pattern, str):
            # CLIP's files of today name the special tokens before it, which are not
            # parsed here.
            alternatives = r"<\|startoftext\|>|<\|endoftext\|>|"
            step = {**step, "pattern": pattern.removeprefix(alternatives)}
            step["pattern"] = {"Regex": step["pattern"]}
    return {
        name: value
        for name, value in step.items()
        if name not in defaults or value != defaults[name]
    }


def _but_for_blanks(steps: list[dict]) -> list[dict]:
    """The steps, without those that join blanks, as SentencePiece does in any case.

    Older files of its models join them in the normalizer, newer ones by
    `WhitespaceSplit`.
    """

    def joins_blanks(step):
        return step.get("type") in ("WhitespaceSplit", "Strip") or (
            step.get("type") == "Replace"
            and step.get("pattern") == {"Regex": " {2,}"}
            and step.get("content") in (" ", "▁")
        )

    return [step for step in steps if not joins_blanks(step)]


def _options(model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a model besides its vocabulary, without those that are empty."""
    apart = {"vocab", "merges"}
    if "merges" in model:
        # A byte-level vocabulary spells every text, so nothing is unknown.
        apart |= {"unk_token", "fuse_unk"}
        model = {"type": "BPE", **model}
    return {
        name: value
        for name, value in model.items()
        if name not in apart
        and value is not None
        and value is not False
        and value != ""
    }


def _same_pieces(content: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether the vocabulary, with its added tokens, equals the plain files'."""
    theirs = (content.get("model") or {}).get("vocab")
    if isinstance(ours["vocab"], list):
        # The converter of transformers makes some of XLNet's pieces less probable,
        # those which its tokenizer splits afterwards.
        return (
            isinstance(theirs, list)
            and len(theirs) == len(ours["vocab"])
            and all(
                isinstance(one, list)
                and len(one) == 2
                and one[0] == other[0]
                and (
                    math.isclose(one[1], other[1], rel_tol=1e-4, abs_tol=1e-4)
                    or other[0][-1:] == ","
                    and math.isclose(one[1], other[1] - 100, rel_tol=1e-4)
                )
                for one, other in zip(theirs, ours["vocab"], strict=True)
            )
        )
    return get_vocabulary(content) == ours["vocab"]


def _pairs(merges: Any) -> list[list[str]]:
    """Merges as pairs; older files write a pair as one string with a blank."""
    return [
        each.split(" ") if isinstance(each, str) else list(each)
        for each in merges or []
    ]

"""A `tokenizer.json` of any kind, run by the library `tokenizers`."""

import contextlib
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_attn.data.text import tokenizer_files as files
from keras_attn.data.text.added_tokens import AddedToken
from keras_attn.data.text.conventions import Convention, Vocabulary
from keras_attn.data.text.folder_settings import (
    get_templates,
    get_vocabulary,
    read_by_library,
)
from keras_attn.data.text.text_tokenizer import TextTokenizer, tokenizers_library
from keras_attn.docstrings.descriptions import described_as
from keras_attn.files.reading import shown

# The roles of special tokens in files that do not name them.
_ROLES = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "unknown": ("[UNK]", "<unk>"),
    "start": ("<s>", "<|startoftext|>", "<|begin_of_text|>", "<bos>", "[BOS]"),
    "end": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[EOS]"),
    "classify": ("[CLS]", "<cls>"),
    "separate": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}


class JSONTokenizer(TextTokenizer):
    """Any tokenizer in the format of the library `tokenizers`, which runs it.

    The library applies every normalizer, splitting, model, row and added token of a
    `tokenizer.json`, so the ids are its own. `load_text_tokenizer` makes one wherever a
    folder says more than the files of our other tokenizers, or is of another kind.

    Added tokens are found in texts. Those with a role, such as "[SEP]", or in the
    template of a row are ordinary text, unless `parse_special_tokens` is set.

    It does not work inside a TensorFlow graph: encode texts by `encode_batch` before
    the graph, and export the model without it.

    Needs the extra `text`.

    Args:
        content: The content of a `tokenizer.json`, as a dictionary.
        tokens: The special token of each role: "pad", "unknown", "start", "end",
            "classify", "separate" and "mask". Roles that are absent get the common
            names that the content has as special tokens.
        added: Tokens to add to the content's.
        plain_tokens: Special tokens that are ordinary text in texts, besides those with
            a role or in the template of a row.
        parse_all: Whether other special tokens are found in texts. False reads them as
            ordinary text, too.

    Example:
        Needs the tokenizer of a checkpoint:

        ```python
        import json
        from pathlib import Path
        from keras_attn import data

        content = json.loads(Path("tokenizer.json").read_text())
        tokenizer = data.JSONTokenizer(content)
        tokenizer.encode_batch(["Once upon a time"])
        ```
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        tokens: Mapping[str, str] | None = None,
        added: Iterable[AddedToken] = (),
        plain_tokens: Iterable[str] = (),
        parse_all: bool = True,
    ):
        library = tokenizers_library()
        whole = read_by_library(library, content)
        # `encode_batch` pads and truncates.
        whole.no_padding()
        whole.no_truncation()
        _add(library, whole, added)
        self._content = whole.to_str()
        fields = json.loads(self._content)
        if fields["model"].get("dropout"):
            raise ValueError(
                "`model.dropout` in tokenizer.json must be null: it would make ids "
                f"random. Received: dropout={fields['model']['dropout']}"
            )
        ids = get_vocabulary(fields)
        convention = _convention(fields, content.get("padding"), ids, tokens or {})
        super().__init__(Vocabulary.of(_in_order(ids), convention))
        flagged = {
            each["content"] for each in fields["added_tokens"] if each["special"]
        }
        named = {*(tokens or {}).values(), *plain_tokens}
        roles = {*convention.tokens.values(), *plain_tokens}
        self._special = {
            token: ids[token]
            for token in sorted(flagged | roles, key=lambda token: ids.get(token, -1))
            if token in flagged or (token in named and token in ids)
        }
        # Which of them are ordinary text in texts.
        self._ordinary = roles & set(self._special) if parse_all else set(self._special)
        self._controls = {ids[token] for token in self._ordinary}
        self._controls -= {self.unknown_token_id, _unknown_id(fields["model"])}
        # What is flagged as special is ordinary text to this model.
        for each in fields["added_tokens"]:
            each["special"] = each["content"] in self._ordinary
        self._model = read_by_library(library, fields)
        self._model.encode_special_tokens = True
        self._may_clean_up = fields["model"]["type"] != "BPE"
        self.spells_bytes = '"ByteLevel"' in json.dumps(fields["decoder"])

    @described_as(TextTokenizer.save)
    def save(self, folder: str | os.PathLike) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`."""
        files.remove_others(folder)
        content = json.loads(self._content)
        files.write_json(Path(folder) / "tokenizer.json", content)
        options: dict[str, Any] = {}
        if self.convention.pad_left:
            options["padding_side"] = "left"
        if self.convention.pad_segment:
            options["pad_token_type_id"] = self.convention.pad_segment
        tokens = {
            role: token
            for role, token in self.convention.tokens.items()
            if role in files.SETTING_OF_ROLE and token in self._special
        }
        self._save_settings(folder, "PreTrainedTokenizerFast", tokens, **options)

    def _kept_settings(self) -> dict[str, Any]:
        # These are in `tokenizer.json`.
        held = ("added_tokens_decoder", "additional_special_tokens")
        kept = super()._kept_settings()
        return {
            name: value
            for name, value in kept.items()
            if name not in (*held, "add_bos_token", "add_eos_token")
        }

    @property
    def special_token_ids(self) -> dict[str, int]:
        """The id of each special token."""
        return self._special

    @functools.cached_property
    def _parsing(self) -> Any:
        """The model that finds every special token."""
        return read_by_library(tokenizers_library(), json.loads(self._content))

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        encoded = _encoded(self._model, texts)
        return [self._without_controls(each) for each in encoded]

    def _without_controls(self, ids: list[int]) -> list[int]:
        """The ids, where a text spells no special token that the model has as a piece.

        SentencePiece models, and splitting only at blanks, would give its id.
        """
        if self._controls.isdisjoint(ids):
            return ids
        spelt = []
        for index in ids:
            if index in self._controls:
                letters = (self._model.model.tokenize(c) for c in self.pieces[index])
                spelt += [token.id for tokens in letters for token in tokens]
            else:
                spelt.append(index)
        return spelt

    def _encode_around_special_tokens(self, text: str) -> list[int]:
        return _encoded(self._parsing, [text])[0]

    def _join(self, ids: list[int]) -> str:
        with _panics_raise(
            "`ids` must be ids that the decoder of this tokenizer.json can decode."
        ):
            return self._model.decode(ids, skip_special_tokens=False) if ids else ""


def _encoded(model: Any, texts: list[str]) -> list[list[int]]:
    with _panics_raise(
        "`texts` must be texts that this tokenizer.json can encode; does its model "
        "lack the unknown token?"
    ):
        encoded = model.encode_batch(texts, add_special_tokens=False)
    return [each.ids for each in encoded]


@contextlib.contextmanager
def _panics_raise(expected: str) -> Iterator[None]:
    """Turns an error of the library, whose panics are not `Exception`s, into ours."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise ValueError(f"{expected} Received: {shown(str(error))}") from error


def _add(library: Any, model: Any, added: Iterable[AddedToken]) -> None:
    """Adds tokens, with the ids that they have in the files."""
    for token in added:
        model.add_tokens([library.AddedToken(token.content, **token.flags)])
        index = model.token_to_id(token.content)
        if token.index is not None and token.index != index:
            raise ValueError(
                "Added tokens must have the id that the vocabulary has for them, or "
                "the next free one; are all files from the same model? Received: "
                f"{shown(token.content)} with the id {token.index}, not {index}"
            )


def _unknown_id(model: Mapping[str, Any]) -> int | None:
    """The id that a model itself gives to what it has no piece for."""
    if isinstance(model["vocab"], list):
        return model.get("unk_id")
    return model["vocab"].get(model.get("unk_token"))


def _in_order(ids: Mapping[str, int]) -> list[str]:
    """The piece of each id; empty where there is none."""
    size = max(ids.values(), default=-1) + 1
    if size > files.MAX_PIECES:
        raise ValueError(
            f"tokenizer.json must have ids below {files.MAX_PIECES}. "
            f"Received: the id {size - 1}"
        )
    pieces = [""] * size
    for piece, index in ids.items():
        if pieces[index]:
            raise ValueError(
                "tokenizer.json must give each id to one piece. Received: the id "
                f"{index} of {shown(pieces[index])} and {shown(piece)}"
            )
        pieces[index] = piece
    return pieces


def _convention(
    content: Mapping[str, Any],
    padding: Any,
    ids: Mapping[str, int],
    named: Mapping[str, str],
) -> Convention:
    """The special tokens and the rows of a content."""
    tokens = {role: token for role, token in named.items() if token in ids}
    special = {each["content"] for each in content["added_tokens"] if each["special"]}
    for role, names in _ROLES.items():
        found = next((name for name in names if name in special), None)
        if role not in named and found is not None:
            tokens[role] = found
    padding = padding if isinstance(padding, dict) else {}
    if "pad" not in named and padding.get("pad_token") in ids:
        tokens["pad"] = padding["pad_token"]
    pieces = {index: piece for piece, index in ids.items()}
    unknown = _unknown_id(content["model"])
    if unknown in pieces:
        tokens.setdefault("unknown", pieces[unknown])
    # What pads does not matter, because the mask excludes it.
    fallback = next(iter(ids), None)
    for role in ("end", "unknown"):
        fallback = tokens.get(role, fallback)
        if role in tokens:
            break
    if fallback is None:
        raise ValueError("tokenizer.json must have a vocabulary. Received: none")
    tokens.setdefault("pad", fallback)

    roles: dict[str, str] = {}
    for role, token in tokens.items():
        roles.setdefault(token, role)
    rows = []
    for template in get_templates(content["post_processor"]):
        row = []
        for part, segment in template:
            if isinstance(part, int):
                if part not in pieces:
                    raise ValueError(
                        "`post_processor` in tokenizer.json must add ids of the "
                        f"vocabulary. Received: the id {part}"
                    )
                # A special token without a role is its own.
                role = roles.get(pieces[part], pieces[part])
                tokens.setdefault(role, pieces[part])
                part = role
            row.append((part, segment))
        rows.append(tuple(row))
    left = {each["content"] for each in content["added_tokens"] if each["lstrip"]}
    return Convention(
        tokens,
        rows[0],
        rows[1],
        pad_left=padding.get("direction") == "Left",
        pad_segment=padding.get("pad_type_id") or 0,
        other_tokens=tuple(sorted(special - set(tokens.values()))),
        left_strip=tuple(role for role, token in tokens.items() if token in left),
    )

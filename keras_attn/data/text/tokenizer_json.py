"""Makes the `tokenizer.json` that equals the plain files of a tokenizer.

It is the format of the library `tokenizers`. With it a folder of `vocab.txt`,
`vocab.json` or `spiece.model` and further tokens can be run by that library; and a
folder's own `tokenizer.json` can be compared with what our tokenizers compute.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_attn.data.text.added_tokens import AddedToken
from keras_attn.data.text.byte_pairs import CLIP_WORD
from keras_attn.data.text.conventions import Convention
from keras_attn.data.text.sentencepiece_model import CONTROL, USER_DEFINED, parse_model

# A SentencePiece model of byte pairs has no merges, which a `tokenizer.json` needs.
NOT_UNIGRAM = "SentencePiece of byte pairs"
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
# What the reference of SigLIP removes, and its blanks.
_PUNCTUATION = r"[!-/:-@\[-`{-~]"
_BLANKS = r"[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
_PATTERNS = (r"\s+", " {2,}", _PUNCTUATION, _BLANKS)
_STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
_BYTE_LEVEL = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
# In transformers it belongs to the class, not to the file.
CLIP_DECODER = {
    "type": "Sequence",
    "decoders": [
        _BYTE_LEVEL | {"add_prefix_space": True},
        {"type": "Replace", "pattern": {"Regex": r"</w>\z"}, "content": ""},
        {"type": "Replace", "pattern": {"String": "</w>"}, "content": " "},
    ],
}


def wordpiece_json(
    pieces: Sequence[str],
    convention: Convention,
    lower_case: bool = True,
    strip_accents: bool | None = None,
    chinese_characters: bool = True,
) -> dict[str, Any]:
    """BERT's tokenizer.

    Args:
        pieces: The vocabulary, in the order of the ids.
        convention: The special tokens, and the templates of rows.
        lower_case: Whether the model is uncased.
        strip_accents: Whether accents are removed; None means as `lower_case`.
        chinese_characters: Whether each Chinese character is a word.
    """
    return _content(
        pieces,
        convention,
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": chinese_characters,
            "strip_accents": strip_accents,
            "lowercase": lower_case,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        model={
            "type": "WordPiece",
            "unk_token": convention.tokens["unknown"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
        },
    )


def byte_level_json(
    pieces: Sequence[str],
    merges: Iterable[tuple[str, str]],
    convention: Convention,
    add_prefix_space: bool = False,
) -> dict[str, Any]:
    """GPT-2's and RoBERTa's tokenizer.

    Args:
        pieces: The vocabulary, in the order of the ids.
        merges: The pairs of pieces to merge, by priority.
        convention: The special tokens, and the templates of rows.
        add_prefix_space: Whether a blank is added before each text.
    """
    return _content(
        pieces,
        convention,
        normalizer=None,
        pre_tokenizer=_byte_level(add_prefix_space),
        decoder=_byte_level(True),
        model=_byte_pairs(pieces, merges),
    )


def clip_json(
    pieces: Sequence[str], merges: Iterable[tuple[str, str]], convention: Convention
) -> dict[str, Any]:
    """CLIP's tokenizer.

    Args:
        pieces: The vocabulary, in the order of the ids.
        merges: The pairs of pieces to merge, by priority.
        convention: The special tokens, and the templates of rows.
    """
    word = {
        "type": "Split",
        "pattern": {"Regex": CLIP_WORD},
        "behavior": "Removed",
        "invert": True,
    }
    return _content(
        pieces,
        convention,
        normalizer=_sequence(
            "normalizers", {"type": "NFC"}, _replace(r"\s+", " "), {"type": "Lowercase"}
        ),
        pre_tokenizer=_sequence("pretokenizers", word, _byte_level(False)),
        decoder=CLIP_DECODER,
        model=_byte_pairs(pieces, merges) | {"end_of_word_suffix": "</w>"},
    )


def sentencepiece_json(
    model: bytes,
    pieces: Sequence[str],
    convention: Convention,
    name: str,
    lower_case: bool = False,
) -> dict[str, Any]:
    """A tokenizer of a SentencePiece model.

    Args:
        model: The content of the model's file.
        pieces: The vocabulary, in the order of the ids.
        convention: The special tokens, and the templates of rows.
        name: The convention's name.
        lower_case: Whether text is lower-cased first.
    """
    parsed = parse_model(model)
    scores = {piece: score for piece, score, _ in parsed.pieces}
    steps: list[dict[str, Any]] = []
    if name == "xlnet":
        steps = [_replace("``", '"'), _replace("''", '"')]
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if name == "siglip":
        steps = [_replace("▁", " ")]
    if lower_case:
        steps.append({"type": "Lowercase"})
    if name == "siglip":
        steps += [_replace(_PUNCTUATION, ""), _replace(_BLANKS, " ")]
    if parsed.characters:
        characters = base64.b64encode(parsed.characters).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": characters})
    space = _METASPACE | {"split": True}
    if not parsed.adds_blank:
        space["prepend_scheme"] = "never"
    apart = [{"type": "WhitespaceSplit"}] if parsed.joins_blanks else []
    if name == "siglip":
        # In its reference, what follows an added token begins no word.
        space["prepend_scheme"] = "first"
        steps += [_replace(" {2,}", " "), _STRIP]
        apart = []
    content = _content(
        pieces,
        convention,
        normalizer=_sequence("normalizers", *steps) if steps else None,
        pre_tokenizer=_sequence("pretokenizers", *apart, space),
        decoder=space,
        model={
            "type": "Unigram" if parsed.is_unigram else NOT_UNIGRAM,
            "unk_id": pieces.index(convention.tokens["unknown"]),
            "vocab": [[piece, scores.get(piece, 0.0)] for piece in pieces],
            "byte_fallback": parsed.byte_fallback,
        },
    )
    known = {each["content"] for each in content["added_tokens"]}
    content["added_tokens"] += [
        _added(AddedToken(piece, pieces.index(piece), special=kind == CONTROL))
        for piece, _, kind in parsed.pieces
        if kind in (CONTROL, USER_DEFINED) and piece not in known
    ]
    return content


def template_json(
    single: Sequence[tuple[str, int]],
    pair: Sequence[tuple[str, int]],
    ids: Mapping[str, int],
) -> dict[str, Any]:
    """A post-processor that puts special tokens around texts.

    Args:
        single: "A" or a special token, with its segment, of a row of one text.
        pair: "A", "B" or a special token, with its segment, of a row of two.
        ids: The id of each special token.
    """

    def part(name, segment):
        kind = "Sequence" if name in ("A", "B") else "SpecialToken"
        return {kind: {"id": name, "type_id": segment}}

    names = {name for name, _ in (*single, *pair)} - {"A", "B"}
    return {
        "type": "TemplateProcessing",
        "single": [part(*each) for each in single],
        "pair": [part(*each) for each in pair],
        "special_tokens": {
            name: {"id": name, "ids": [ids[name]], "tokens": [name]}
            for name in sorted(names)
        },
    }


def _content(pieces, convention: Convention, **components) -> dict[str, Any]:
    ids = {piece: index for index, piece in enumerate(pieces)}
    roles = convention.tokens
    single, pair = (
        [(roles.get(name, name), segment) for name, segment in template]
        for template in (convention.single, convention.pair)
    )
    special = dict.fromkeys((*roles.values(), *convention.other_tokens))
    flagged = [
        AddedToken(token, ids[token], lstrip=token in convention.left_stripped)
        for token in special
        if token in ids
    ]
    flagged.sort(key=lambda token: token.index or 0)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(token) for token in flagged],
        "post_processor": template_json(single, pair, ids),
        **components,
    }


def _added(token: AddedToken) -> dict[str, Any]:
    return {"id": token.index, "content": token.content, **token.flags}


def _byte_level(prefix: bool) -> dict[str, Any]:
    return _BYTE_LEVEL | {"add_prefix_space": prefix}


def _byte_pairs(pieces, merges) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {piece: index for index, piece in enumerate(pieces)},
        "merges": [list(pair) for pair in merges],
    }


def _replace(pattern: str, by: str) -> dict[str, Any]:
    kind = "Regex" if pattern in _PATTERNS else "String"
    return {"type": "Replace", "pattern": {kind: pattern}, "content": by}


def _sequence(field: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", field: list(steps)}

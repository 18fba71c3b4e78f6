"""Writes what the tests of the tokenizers compare with; the library's tables too.

    python tests/data/generate_tokenizers.py             # tests/data/references/
    python tests/data/generate_tokenizers.py --tables    # data/unicode_ranges.py

Needs `transformers`, `tokenizers` and `sentencepiece` (the references) and
tensorflow-text. Half a minute on two cores. Run it only when a case is added: the
small models are learned anew, and what is committed changes with them.
"""

import argparse
import io
import json
import os
import pathlib
import sys
import textwrap
import unicodedata

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import numpy as np
import tokenizers

HERE = pathlib.Path(__file__).parent
REFERENCES = HERE / "references"
TABLES = HERE.parents[1] / "keras_attn" / "data" / "unicode_ranges.py"
PAIR_LENGTHS = (7, 8, 13)
CODEPOINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def write_tables():
    """Asks the references what each character is, one by one."""
    import tensorflow as tf
    import tensorflow_text

    bert = {
        "clean_text": False,
        "handle_chinese_chars": False,
        "strip_accents": False,
        "lowercase": False,
    }
    normalizers = tokenizers.normalizers
    clean, accents, chinese, lower = (
        normalizers.BertNormalizer(**bert | {option: True}).normalize_str
        for option in (
            "clean_text",
            "strip_accents",
            "handle_chinese_chars",
            "lowercase",
        )
    )
    nfd = normalizers.NFD().normalize_str
    split = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str

    removed = {c for c in CODEPOINTS if clean(chr(c)) == ""}
    spaces = {c for c in CODEPOINTS if clean(chr(c)) == " "}
    words = {c for c in CODEPOINTS if chinese(chr(c)) != chr(c)}
    words |= {c for c in CODEPOINTS if len(split(f"a{chr(c)}b")) == 3}
    marks = {c for c in CODEPOINTS if accents(chr(c)) == ""}

    probe = tensorflow_text.FastWordpieceTokenizer(["a", "##b", "b", "[UNK]"])
    blank = removed | spaces
    live = [c for c in CODEPOINTS if c not in blank]
    ids = probe.tokenize(tf.constant([f"a{chr(c)}b" for c in live])).to_list()
    theirs = {c for c, each in zip(live, ids, strict=True) if each == [0, 3, 2]}

    # Those that Python's Unicode or TensorFlow's takes apart, the reference not.
    apart = tensorflow_text.normalize_utf8(
        tf.constant([chr(c) for c in CODEPOINTS]), "NFD"
    ).numpy()
    undecomposed = {
        c
        for c, text in zip(CODEPOINTS, apart, strict=True)
        if nfd(chr(c)) == chr(c)
        and not text.decode() == chr(c) == unicodedata.normalize("NFD", chr(c))
    }
    for c in CODEPOINTS:
        if c not in undecomposed:
            assert nfd(chr(c)) == unicodedata.normalize("NFD", chr(c)), hex(c)

    lines = [
        '"""What the reference tokenizers hold each character to be.',
        "",
        "Written by tests/data/generate_tokenizers.py, which asks the `tokenizers`",
        "library: facts alone, ranges in hexadecimal. They are listed, not asked of",
        "`unicodedata`, because the reference keeps to the Unicode of its day, and",
        "Python's grows with each release.",
        '"""',
    ]
    for name, why, members in [
        ("REMOVED", "BERT: control, format and private characters vanish.", removed),
        ("SPACES", "BERT: they end a word.", spaces),
        ("MARKS", "BERT: accents and other marks, dropped by uncased models.", marks),
        (
            "ONLY_REFERENCE_SPLITS",
            "Words of their own; tensorflow-text keeps them in a word.",
            words - theirs,
        ),
        (
            "ONLY_TENSORFLOW_SPLITS",
            "Parts of a word; tensorflow-text makes them words of their own.",
            theirs - words,
        ),
        (
            "UNDECOMPOSED",
            "Newer than the reference's NFD, which leaves them whole.",
            undecomposed,
        ),
    ]:
        text = " ".join(
            f"{first:x}" if first == last else f"{first:x}-{last:x}"
            for first, last, _ in runs((c, 0) for c in sorted(members))
        )
        lines += ["", f"# {why}", f'{name} = """', *textwrap.wrap(text, 88), '"""']
    lowered = [
        (c, ord(lower(chr(c))) - c)
        for c in CODEPOINTS
        if lower(chr(c)) != chr(c).lower() and len(lower(chr(c))) == 1
    ]
    lines += ["", "# Lower case unknown to older Pythons: first, last, what is added."]
    lines += ["LOWER = ("]
    lines += [f"    (0x{a:X}, 0x{b:X}, {shift})," for a, b, shift in runs(lowered)]
    TABLES.write_text("\n".join([*lines, ")", ""]))


def runs(pairs):
    """Joins (codepoint, value) neighbours of one value to (first, last, value)."""
    joined = []
    for c, value in pairs:
        if joined and joined[-1][1] == c - 1 and joined[-1][2] == value:
            joined[-1][1] = c
        else:
            joined.append([c, c, value])
    return joined


def write_references():
    """Learns a small vocabulary of each kind and asks the references for its ids."""
    import sentencepiece
    import transformers  # pyright: ignore[reportMissingImports]
    from tokenizer_cases import CASES, SPECIAL

    REFERENCES.mkdir(exist_ok=True)
    vocabulary = learn_wordpiece(CASES)
    (REFERENCES / "vocab.txt").write_text("".join(f"{p}\n" for p in vocabulary))
    numbers = {piece: index for index, piece in enumerate(vocabulary)}
    expected = {}
    for name, options in {
        "uncased": {},
        "cased": {"do_lower_case": False},
        "cased_no_accents": {"do_lower_case": False, "strip_accents": True},
        "uncased_accents": {"strip_accents": False},
    }.items():
        reference = transformers.BertTokenizer(vocab=numbers, **options)
        expected[name] = encode(reference, CASES)
    reference = transformers.BertTokenizer(vocab=numbers)
    expected["special"] = reference(SPECIAL, add_special_tokens=False)["input_ids"]
    expected |= pairs("pairs", reference, CASES)
    write_ids("wordpiece_ids.npz", expected)

    merges = learn_bpe(CASES)
    expected = {}
    for name, kind, special in [
        ("gpt2", transformers.GPT2Tokenizer, ["<|endoftext|>"]),
        (
            "roberta",
            transformers.RobertaTokenizer,
            ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        ),
    ]:
        letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        joined = [first + second for first, second in merges]
        pieces = [*special, *letters, *joined]
        folder = REFERENCES / name
        folder.mkdir(exist_ok=True)
        numbers = {piece: index for index, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(numbers, ensure_ascii=False))
        lines = "".join(f"{first} {second}\n" for first, second in merges)
        (folder / "merges.txt").write_text(f"#version: 0.2\n{lines}")
        reference = kind.from_pretrained(folder)
        reference.pad_token = special[1] if name == "roberta" else special[0]
        expected[name] = encode(reference, CASES)
        expected[f"{name}_special"] = reference(SPECIAL, add_special_tokens=False)[
            "input_ids"
        ]
        expected |= pairs(f"{name}_pairs", reference, CASES)
    write_ids("bpe_ids.npz", expected)

    model = learn_sentencepiece(CASES)
    (REFERENCES / "spiece.model").write_bytes(model)
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    prepared = [xlnet_text(text) for text in CASES]
    ties = [n for n, text in enumerate(CASES) if is_tie(library, text)]
    xlnet_ties = [n for n, text in enumerate(prepared) if is_tie(library, text)]
    expected = {
        "plain": library.encode(CASES),
        "xlnet": [xlnet_ids(library, text) for text in prepared],
        # Where several ways to cut a text are equally good, and any may come.
        "plain_ties": [ties],
        "xlnet_ties": [xlnet_ties],
    }
    write_ids("sentencepiece_ids.npz", expected)


def encode(reference, texts):
    options = {"add_special_tokens": False, "split_special_tokens": True}
    return reference(texts, **options)["input_ids"]


def pairs(name, reference, texts):
    """Rows of two texts, cut to several lengths: what a model takes, row by row."""
    expected = {}
    for length in PAIR_LENGTHS:
        packed = reference(
            texts[:23],
            texts[29:52],
            max_length=length,
            truncation=True,
            padding="max_length",
            split_special_tokens=True,
            return_token_type_ids=True,
        )
        for key in ("input_ids", "attention_mask", "token_type_ids"):
            expected[f"{name}_{length}_{key}"] = packed[key]
    return expected


def learn_wordpiece(texts):
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    # Both cases and all accents, so that each of the four settings finds its pieces.
    model.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    lowered = tokenizers.normalizers.BertNormalizer()
    corpus = texts + [lowered.normalize_str(text) for text in texts]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=2003,
        limit_alphabet=611,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        show_progress=False,
    )
    model.train_from_iterator(corpus, trainer)
    numbers = model.get_vocab()
    return sorted(numbers, key=numbers.__getitem__)


def learn_bpe(texts):
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1009,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(texts, trainer)
    return [tuple(pair) for pair in json.loads(model.to_str())["model"]["merges"]]


def learn_sentencepiece(texts):
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in texts if text.strip()]),
        model_writer=model,
        vocab_size=1201,
        hard_vocab_limit=False,
        character_coverage=0.985,
        control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
        user_defined_symbols=["<eop>"],
        # The usual rule is 240 kB of a model; the live test has it.
        normalization_rule_name="identity",
        minloglevel=2,
    )
    return model.getvalue()


def xlnet_text(text):
    """What XLNet's authors do to a text, in their order."""
    text = " ".join(text.strip().split())
    text = text.replace("``", '"').replace("''", '"')
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.combining(c))


def xlnet_ids(library, text):
    """The ids of a prepared text; a comma that follows a digit stands alone."""
    pieces = []
    for piece in library.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            number = library.encode(piece[:-1].replace("▁", ""), out_type=str)
            if not piece.startswith("▁") and number[0].startswith("▁"):
                number = (
                    [number[0][1:], *number[1:]] if number[0] != "▁" else number[1:]
                )
            pieces += [*number, ","]
        else:
            pieces.append(piece)
    return [library.piece_to_id(piece) for piece in pieces]


def is_tie(library, text):
    """Whether the two best ways to cut a text are alike to the last bit but one."""
    best = library.nbest_encode(text, nbest_size=2)
    scores = [sum(library.get_score(i) for i in ids) for ids in best]
    return len(scores) == 2 and abs(scores[0] - scores[1]) < 1e-4


def write_ids(name, expected):
    """Writes ragged rows of ids as one flat array and the lengths of the rows."""
    arrays = {}
    for key, rows in expected.items():
        arrays[key] = np.array([i for row in rows for i in row], np.uint16)
        arrays[f"{key}_lengths"] = np.array([len(row) for row in rows], np.uint16)
    np.savez_compressed(REFERENCES / name, **arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true")
    if parser.parse_args().tables:
        write_tables()
    else:
        write_references()

"""Questions about images with ten answers each, in the JSON of VQA 1.0 and 2.0.

Legend: B batch, H and W pixels, T words of a question, K answers to a question.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_choice, check_pair, check_positive
from keras_attn.data.images.answers import normalize_answer
from keras_attn.data.images.coco import get_entries
from keras_attn.data.images.geometry import fit_into, normalization
from keras_attn.data.images.image_files import check_folder, check_names
from keras_attn.data.pipelines.bad_files import Skipped
from keras_attn.data.pipelines.epochs import Epoch
from keras_attn.data.pipelines.examples import (
    check_batches,
    example_dataset,
    image_loader,
)
from keras_attn.files.reading import MIB, is_file, naming, read_json, shown

# The annotations of VQA 2.0's training set have about 370 MB and 20 million values.
_MAX_BYTES = 1024 * MIB
_MAX_ENTRIES = 100_000_000
_UNKNOWN_ID = 1  # 0 is padding.
_WORD = re.compile(r"[\w']+")
COCO_NAME = "COCO_{split}_{image_id:012d}.jpg"


@dataclass(frozen=True)
class VQAExample:
    """A question about an image.

    Attributes:
        question_id: Its number.
        question: The text.
        image_path: The image.
        answers: The K answers that people gave, normalized.
        question_type: The question's first words, as the file groups them, or "".
        answer_type: "yes/no", "number" or "other", or "".
    """

    question_id: int
    question: str
    image_path: Path
    answers: tuple[str, ...]
    question_type: str = ""
    answer_type: str = ""


class WordVocabulary:
    """The words of a data set that have an id.

    Attributes:
        words: The words: the i-th has id i + 2; 0 is padding and 1 any other word.
    """

    words: list[str]

    @property
    def vocabulary_size(self) -> int:
        """Number of rows of a model's word embeddings."""
        return len(self.words) + 2


@dataclass(frozen=True)
class VQAData(WordVocabulary):
    """A set of questions about images.

    Attributes:
        examples: The questions.
        words: The words that have an id: the i-th has id i + 2; 0 is padding and 1 any
            other word.
        answers: The answers that a model chooses from; class i is the i-th.
        unknown_words: See `read_vqa`.
        skipped: What was left out, with reasons. Corrupt images are added when they
            are first read.
    """

    examples: list[VQAExample]
    words: list[str]
    answers: list[str]
    unknown_words: str = "token"
    skipped: Skipped = field(default_factory=partial(Skipped, "raise"))

    def __len__(self) -> int:
        return len(self.examples)

    def encode(self, question: str) -> list[int]:
        """The ids of a question's words.

        Args:
            question: The text.

        Raises:
            ValueError: If `question` has no words, or, with
                `unknown_words="leave_out"`, no known words.
        """
        return encode_question(question, make_word_ids(self.words), self.unknown_words)


def split_words(question: str) -> list[str]:
    """The words of a question in lower case, without punctuation except apostrophes."""
    return _WORD.findall(question.lower())


def read_vqa(
    questions: str | os.PathLike,
    annotations: str | os.PathLike,
    image_folder: str | os.PathLike,
    *,
    words: Sequence[str] | None = None,
    answers: Sequence[str] | None = None,
    num_answers: int = 3000,
    min_word_count: int = 1,
    unknown_words: str = "token",
    answers_per_question: int = 10,
    image_name: str = COCO_NAME,
    on_error: str = "raise",
) -> VQAData:
    """Reads the questions and the answers of a split of VQA.

    The images are read later, by `vqa_dataset`; here they are only looked for.

    Args:
        questions: The JSON file of questions, such as
            `v2_OpenEnded_mscoco_train2014_questions.json`.
        annotations: The JSON file of answers, such as
            `v2_mscoco_train2014_annotations.json`.
        image_folder: The folder with the images.
        words: The words that get ids, such as `train.words` for a validation split.
            None takes the words of these questions, the most frequent first.
        answers: The answers to choose from, such as `train.answers`. None takes the
            most frequent of these.
        num_answers: How many answers to take, if `answers` is None.
        min_word_count: How often a word must occur to get an id, if `words` is None.
        unknown_words: What happens to a word without an id. "token" gives it the id 1.
            "leave_out" leaves it out, and a question with no other words is bad.
        answers_per_question: K.
        image_name: Name of an image, with the fields `{image_id}` and `{split}`, the
            file's `data_subtype`.
        on_error: "raise" refuses a bad file or question. "skip" leaves the question
            out; a warning counts them, `data.skipped` lists them.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: If a file or the image of a question does not exist.
        ValueError: If a file is not JSON of this format; if a question does not have K
            answers, has two lists of answers, or names a different image than its
            answers; or if no question is left.

    Example:
        Needs the questions, the answers and a folder of photos:

        ```python
        from keras_attn import data

        train = data.read_vqa("questions.json", "annotations.json", "train2014")
        names = ("val_questions.json", "val_annotations.json", "val2014")
        val = data.read_vqa(*names, words=train.words, answers=train.answers)
        ```

    Reference:
        Goyal et al. 2017, "Making the V in VQA Matter" (arXiv:1612.00837).
    """
    skipped = Skipped(on_error)
    check_choice("unknown_words", unknown_words, ("token", "leave_out"))
    for name, value in {
        "num_answers": num_answers,
        "min_word_count": min_word_count,
        "answers_per_question": answers_per_question,
    }.items():
        check_positive(name, value)
    folder = check_folder("image_folder", image_folder)
    questions_path, annotations_path = Path(questions), Path(annotations)
    content = read_json(questions_path, _MAX_BYTES, _MAX_ENTRIES)
    asked = _by_question(content, "questions", questions_path, skipped)
    answered = _by_question(
        read_json(annotations_path, _MAX_BYTES, _MAX_ENTRIES),
        "annotations",
        annotations_path,
        skipped,
    )
    split = content.get("data_subtype", "")
    known_images: dict[Any, Path] = {}
    examples = []
    for number, entry in asked.items():
        label = f"{questions_path.name}, question {number}"
        with skipped.collecting(label):
            found = _check_answers(
                answered.get(number), entry, answers_per_question, annotations_path
            )
            if not split_words(_get_text(entry, "question", label)):
                raise ValueError(
                    f"{label} must have at least one word. Received: "
                    f"{shown(entry['question'])}"
                )
            image = entry.get("image_id")
            if image not in known_images:
                known_images[image] = _image_path(
                    folder, image_name, image, split, label
                )
            kinds = answered[number]
            examples.append(
                VQAExample(
                    question_id=number,
                    question=entry["question"],
                    image_path=known_images[image],
                    answers=found,
                    question_type=str(kinds.get("question_type", "")),
                    answer_type=str(kinds.get("answer_type", "")),
                )
            )
    for number in answered.keys() - asked.keys():
        label = f"{annotations_path.name}, question {number}"
        error = f"{label} must be among the questions of {str(questions_path)!r}"
        skipped.add(label, ValueError(f"{error}. Received: question_id={number}"))
    _check_any(examples, questions, annotations)
    if words is None:
        words = frequent_words((each.question for each in examples), min_word_count)
    if answers is None:
        given = Counter(answer for each in examples for answer in each.answers)
        answers = by_count(given)[:num_answers]
    ids = make_word_ids(_distinct("words", words))
    kept = []
    for each in examples:
        label = f"{questions_path.name}, question {each.question_id}"
        with skipped.collecting(label), naming(label):
            encode_question(each.question, ids, unknown_words)
            kept.append(each)
    _check_any(kept, questions, annotations)
    skipped.report(f"VQA in {str(questions)!r}")
    return VQAData(
        kept, list(words), _distinct("answers", answers), unknown_words, skipped
    )


def vqa_dataset(
    data: VQAData,
    *,
    image_size: int | tuple[int, int],
    batch_size: int,
    max_question_length: int | None = None,
    keep_aspect_ratio: bool = False,
    normalize: str | None = None,
    seed: int = 0,
    shuffle: bool = False,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of images and questions with their answers, for `model.fit`.

    Args:
        data: From `read_vqa`.
        image_size: H and W of the batches, one number or two.
        batch_size: B.
        max_question_length: T. The end of a longer question is cut off. None takes the
            length of the longest question.
        keep_aspect_ratio: Whether an image keeps its aspect ratio, and is padded at the
            right or at the bottom; otherwise it is stretched.
        normalize: "imagenet", "unit" or None; see `detection_dataset`.
        seed: Seed of the order.
        shuffle: Whether each epoch has a new random order.
        epoch: Number of the epoch, or a `tf.Variable` that holds it. None counts the
            iterations.
        drop_remainder: Whether the last batch is left out if it is smaller.

    Returns:
        A dataset of known cardinality: a dictionary of `images` float32 (B, H, W, 3),
        `token_ids` and `padding_mask` int32 (B, T); and the answers, int32 (B, K), -1
        for one that is not among `data.answers`, for `SoftAnswerCrossEntropy` and
        `VQAAccuracy`.

    Raises:
        ValueError: If `data` has no questions, or an argument is out of range.
        tf.errors.InvalidArgumentError: If an image is corrupt, unless `data` was read
            with `on_error="skip"`. It is raised while the dataset is read, and names
            the file.
    """
    size = check_pair("image_size", image_size)
    check_batches(data, batch_size, "questions")
    ids = make_word_ids(data.words)
    encoded = [
        encode_question(each.question, ids, data.unknown_words)
        for each in data.examples
    ]
    if max_question_length is None:
        max_question_length = max(map(len, encoded))
    length = check_positive("max_question_length", max_question_length)
    token_ids = keras.utils.pad_sequences(
        encoded, length, padding="post", truncating="post"
    )
    classes = {answer: number for number, answer in enumerate(data.answers)}
    answers = np.array(
        [[classes.get(text, -1) for text in each.answers] for each in data.examples],
        np.int32,
    )
    mean, deviation = normalization(normalize)

    paths = [each.image_path for each in data.examples]
    load_image = image_loader(paths, list(map(str, paths)), data.skipped)

    def load(row):
        image, is_valid = load_image(row)
        example = {
            "image": image,
            "token_ids": tf.gather(token_ids, row),
            "answers": tf.gather(answers, row),
        }
        return example, is_valid

    def finish(example):
        fitted = fit_into(example, size, keep_aspect_ratio, fill=mean)
        inputs = {
            "images": (fitted["image"] - mean) / deviation,
            "token_ids": example["token_ids"],
            "padding_mask": tf.cast(example["token_ids"] > 0, tf.int32),
        }
        return inputs, example["answers"]

    return example_dataset(
        load,
        finish,
        len(data),
        data.skipped,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def _by_question(
    content: dict, name: str, path: Path, skipped: Skipped
) -> dict[int, dict[str, Any]]:
    """The entries of a file by their `question_id`; each id occurs once."""
    entries: dict[int, dict[str, Any]] = {}
    for index, entry in enumerate(get_entries(content, name, path)):
        label = f"{path.name}, entry {index} of `{name}`"
        number: Any = entry.get("question_id")
        if type(number) is int and number not in entries:
            entries[number] = entry
            continue
        expected = "once in the file" if type(number) is int else "an integer"
        error = f"{label} must have a `question_id`, {expected}"
        skipped.add(
            label, ValueError(f"{error}. Received: question_id={shown(number)}")
        )
    return entries


def _check_any(examples, questions, annotations) -> None:
    if not examples:
        raise ValueError(
            "`questions` and `annotations` must have questions that can be used. "
            f"Received: questions={str(questions)!r}, annotations={str(annotations)!r}"
        )


def _check_answers(entry, question, count: int, path: Path) -> tuple[str, ...]:
    """The normalized answers to a question."""
    number = question["question_id"]
    label = f"{path.name}, question {number}"
    if entry is None:
        raise ValueError(f"{label} must have answers. Received: no entry")
    if entry.get("image_id") != question.get("image_id"):
        raise ValueError(
            f"{label} must be about the image of the question, "
            f"{shown(question.get('image_id'))}. "
            f"Received: image_id={shown(entry.get('image_id'))}"
        )
    found = entry.get("answers")
    if not isinstance(found, list) or len(found) != count:
        raise ValueError(
            f"{label} must have `answers`, a list of {count}; pass "
            f"`answers_per_question` for a different number. Received: {shown(found)}"
        )
    if not all(isinstance(x, dict) for x in found):
        raise ValueError(
            f"{label} must have objects as answers. Received: {shown(found)}"
        )
    return tuple(normalize_answer(_get_text(each, "answer", label)) for each in found)


def _get_text(entry: dict, name: str, label: str) -> str:
    text = entry.get(name)
    if not isinstance(text, str):
        raise ValueError(
            f"{label} must have a text as `{name}`. Received: {shown(text)}"
        )
    return text


def _image_path(folder: Path, image_name: str, image, split, label: str) -> Path:
    """The path of an image, which must exist."""
    if type(image) is not int or not isinstance(split, str):
        raise ValueError(
            f"{label} must have an integer as `image_id`, and its file must have a "
            f"text as `data_subtype`. Received: image_id={shown(image)}, "
            f"data_subtype={shown(split)}"
        )
    try:
        name = image_name.format(image_id=image, split=split)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            "`image_name` must be a name with the fields {image_id} and {split} "
            f"({error}). Received: image_name={image_name!r}"
        ) from error
    check_names([name], label)
    path = folder / name
    if not is_file(path):
        raise FileNotFoundError(
            f"{label} must be about an image in `image_folder`. "
            f"Received: {shown(str(path))}, which is missing"
        )
    return path


def make_word_ids(words: Iterable[str]) -> dict[str, int]:
    """The ids of words: 0 is padding, 1 any other word."""
    return {word: index + 2 for index, word in enumerate(words)}


def encode_question(
    question: str, ids: dict[str, int], unknown_words: str
) -> list[int]:
    """The ids of a question's words, at least one; see `read_vqa`."""
    words = split_words(question)
    if unknown_words == "leave_out":
        words = [word for word in words if word in ids]
    if not words:
        raise ValueError(
            "A question must have a known word; pass unknown_words='token' to keep "
            f"unknown ones. Received: {shown(question)}"
        )
    return [ids.get(word, _UNKNOWN_ID) for word in words]


def frequent_words(texts: Iterable[str], min_count: int) -> list[str]:
    """The words of texts, the most frequent first.

    Args:
        texts: The texts.
        min_count: How often a word must occur.
    """
    counts = Counter(word for text in texts for word in split_words(text))
    return [word for word in by_count(counts) if counts[word] >= min_count]


def by_count(counts: Counter) -> list[str]:
    """The most frequent first, equally frequent ones in alphabetical order."""
    return sorted(counts, key=lambda each: (-counts[each], each))


def _distinct(name: str, texts: Sequence[str]) -> list[str]:
    found = list(texts)
    if isinstance(texts, str) or not found or len(set(found)) != len(found):
        raise ValueError(
            f"`{name}` must be a list of one or more different texts. Received: "
            f"{name}={shown(texts)}"
        )
    return found

"""Questions with ten answers: what is read, and what is refused or left out."""

import copy
import json
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from backend import skip_module_without_tensorflow
from data.image_sets import FOLDER, truncate, write_image
from refusals import named_or_left_out, refuses

from keras_attn.data import VQAData, normalize_answer, read_vqa, vqa_dataset

skip_module_without_tensorflow("tf.data feeds TensorFlow")

NAME = "COCO_val2014_{:012d}.png"
QUESTIONS = {
    "info": {},
    "data_subtype": "val2014",
    "questions": [
        {"question_id": 11, "image_id": 3, "question": "What's the cat doing?"},
        {"question_id": 7, "image_id": 5, "question": "How many cats — are there?"},
        {"question_id": 12, "image_id": 3, "question": "Is it a cat?"},
    ],
}
GIVEN = {
    11: ["sleeping"] * 6 + ["It's asleep."] * 3 + ["nothing"],
    7: ["two"] * 5 + ["2"] * 4 + ["none"],
    12: ["Yes"] * 9 + ["no"],
}


def annotation(number, image):
    return {
        "question_id": number,
        "image_id": image,
        "question_type": "how many",
        "answer_type": "number",
        "multiple_choice_answer": GIVEN[number][0],
        "answers": [
            {"answer": text, "answer_confidence": "yes", "answer_id": index}
            for index, text in enumerate(GIVEN[number], start=1)
        ],
    }


# In another order than the questions.
ANNOTATIONS = {"annotations": [annotation(12, 3), annotation(11, 3), annotation(7, 5)]}


def write_vqa(folder, questions, annotations):
    """Writes the files of a split; returns the reader's arguments."""
    root = folder / FOLDER
    for number, size in ((3, (31, 43)), (5, (29, 23))):
        write_image(root / "images" / NAME.format(number), size, seed=number)
    paths = root / "questions.json", root / "annotations.json"
    for path, content in zip(paths, (questions, annotations), strict=True):
        path.write_text(json.dumps(content), encoding="utf-8")
    files = {"questions": paths[0], "annotations": paths[1]}
    files["image_folder"] = root / "images"
    return {**files, "image_name": "COCO_{split}_{image_id:012d}.png"}


@pytest.fixture
def files(tmp_path):
    """Writes the files with changes; returns the reader's arguments."""

    def write(change=None):
        questions, annotations = map(copy.deepcopy, (QUESTIONS, ANNOTATIONS))
        if change is not None:
            change(questions, annotations)
        return write_vqa(tmp_path, questions, annotations)

    return write


def test_questions_words_and_answers(files):
    data = read_vqa(**files())
    first, second, third = data.examples
    assert [each.question_id for each in data.examples] == [11, 7, 12]
    assert first.image_path == third.image_path != second.image_path
    assert first.answers == ("sleeping",) * 6 + ("it's asleep",) * 3 + ("nothing",)
    assert second.answers == ("2",) * 9 + ("0",)
    assert (second.question_type, second.answer_type) == ("how many", "number")
    # The most frequent first, then by the alphabet.
    assert data.answers == ["2", "yes", "sleeping", "it's asleep", "0", "no", "nothing"]
    assert data.words[:3] == ["cat", "a", "are"] and len(data.words) == 12
    assert data.vocabulary_size == 14
    assert data.encode("A CAT, a dog?") == [3, 2, 3, 1]
    fewer = read_vqa(**files(), num_answers=2, min_word_count=2)
    assert fewer.answers == ["2", "yes"] and fewer.words == ["cat"]


def test_batches(files):
    data = read_vqa(**files(), num_answers=3)
    dataset = vqa_dataset(data, image_size=(17, 19), batch_size=2, normalize="unit")
    assert dataset.cardinality() == 2
    (inputs, answers), (last, _) = dataset
    assert inputs["images"].shape == (2, 17, 19, 3) and last["images"].shape[0] == 1
    assert 0 <= tf.reduce_min(inputs["images"]) < tf.reduce_max(inputs["images"]) <= 1
    ids = inputs["token_ids"].numpy()
    assert ids.dtype == np.int32 and ids.shape == (2, 5)
    assert ids[1].tolist() == data.encode(data.examples[1].question)
    np.testing.assert_array_equal(inputs["padding_mask"], ids > 0)
    assert inputs["padding_mask"].dtype == tf.int32
    # "it's asleep" and "nothing" are not among the three answers.
    assert answers.numpy().tolist() == [[2] * 6 + [-1] * 4, [0] * 9 + [-1]]
    shorter = vqa_dataset(data, image_size=7, batch_size=3, max_question_length=2)
    ((inputs, _),) = shorter
    assert inputs["token_ids"].numpy().tolist() == [
        data.encode(each.question)[:2] for each in data.examples
    ]


def test_the_order_follows_the_seed_and_the_epoch(files):
    data = read_vqa(**files())
    options: Any = {"image_size": 7, "batch_size": 3, "shuffle": True}

    def order(epoch):
        dataset = vqa_dataset(data, seed=4, epoch=epoch, **options)
        return str(next(iter(dataset))[1].numpy().tolist())

    one, *others = [order(epoch) for epoch in range(4)]
    assert one == order(0) and {one} != {*others}


def test_a_validation_split_has_the_words_and_answers_of_training(files):
    data = read_vqa(**files(), words=["how", "is"], answers=["no"])
    assert data.encode("Is it?") == [3, 1]
    assert [data.encode(each.question) for each in data.examples][0] == [1, 1, 1, 1]
    arguments: Any = {"words": ["how", "is"], "answers": ["no"]}
    arguments |= {**files(), "unknown_words": "leave_out"}
    message = "must have a known word; .*What's the cat"
    data = named_or_left_out(message, read_vqa, **arguments)
    assert [data.encode(each.question) for each in data.examples] == [[2], [3]]
    refuses("must have a known word", data.encode, "And now?")


def question(**fields):
    return lambda questions, _: questions["questions"][1].update(fields)


def answer(**fields):
    return lambda _, annotations: annotations["annotations"][2].update(fields)


def text(value):
    return lambda _, annotations: annotations["annotations"][2]["answers"].__setitem__(
        3, value
    )


def add(index):
    def change(*contents):
        name = ("questions", "annotations")[index]
        contents[index][name].append(copy.deepcopy(contents[index][name][-1]))

    return change


def remove(index):
    return lambda *contents: contents[index][("questions", "annotations")[index]].pop()


BAD = {
    "missing image": (question(image_id=9), "be about the image of the question, 9"),
    "two lists": (add(1), r"entry 3 of `annotations` must have a `question_id`, once"),
    "two questions": (add(0), "entry 3 of `questions` must have a `question_id`, once"),
    "no id": (question(question_id="7"), "an integer. Received: question_id='7'"),
    "no answers": (remove(1), "annotations.json, question 7 must have answers"),
    "no question": (remove(0), "annotations.json, question 12 must be among the"),
    "few answers": (answer(answers=[{"answer": "2"}] * 9), "a list of 10; pass `answe"),
    "no list": (answer(answers=None), "must have `answers`, a list of 10"),
    "no object": (text("two"), "question 7 must have objects as answers"),
    "no text": (text({"answer": 2}), "must have a text as `answer`. Received: 2"),
    "number": (question(question=7), "question 7 must have a text as `question`"),
    "no word": (question(question="?!"), r"at least one word. Received: '\?"),
}


@pytest.mark.parametrize("change, message", BAD.values(), ids=BAD)
def test_what_is_bad_is_refused_or_left_out(files, change, message):
    data = named_or_left_out(message, read_vqa, **files(change), left_out="left out")
    assert 2 <= len(data) <= 3 and data.skipped
    assert any(re.search(message, reason) for reason in data.skipped.values())


def test_a_missing_image_is_named(files):
    arguments = files()
    (arguments["image_folder"] / NAME.format(5)).unlink()
    data = named_or_left_out(r"question 7 .*0005\.png", read_vqa, **arguments)
    assert [each.question_id for each in data.examples] == [11, 12]
    (arguments["image_folder"] / NAME.format(3)).unlink()
    message = "must have questions that can be used"
    refuses(message, read_vqa, **arguments, on_error="skip")


def test_a_corrupt_image_is_named_when_it_is_read(files):
    arguments = files()
    truncate(arguments["image_folder"] / NAME.format(5))
    options: Any = {"image_size": 7, "batch_size": 3}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"000000000005\.png"):
        list(vqa_dataset(read_vqa(**arguments), **options))
    data = read_vqa(**arguments, on_error="skip")
    with pytest.warns(UserWarning, match="Left out while reading"):
        ((_, answers),) = vqa_dataset(data, **options)
    # Replaced by the first question.
    assert answers.numpy()[:, 0].tolist() == [2, 1, 2]


@pytest.mark.parametrize("name", ["questions", "annotations"])
def test_corrupt_and_missing_files_are_named(files, name):
    arguments = files()
    path = arguments[name]
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    refuses(rf"{name}\.json must be JSON; is the file", read_vqa, **arguments)
    path.write_text('{"info": {}}')
    refuses(rf"must have `{name}`, a list of objects", read_vqa, **arguments)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{name}\.json"):
        read_vqa(**arguments)


def no_split(questions, _):
    questions["data_subtype"] = 2014


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"image_name": "{number}.png"}, "`image_name` must be a name with the fields"),
        ({"image_name": "../{image_id}.png"}, "a path inside the folder of images"),
        ({"unknown_words": "raise"}, "`unknown_words` must be one of 'token', 'leave"),
        ({"num_answers": 0}, "`num_answers` must be a positive integer"),
        ({"answers_per_question": 9}, "must have `answers`, a list of 9"),
        ({"answers": []}, "`answers` must be a list of one or more different"),
        ({"words": ["a", "a"]}, "`words` must be a list of one or more different"),
        ({"min_word_count": 99}, "`words` must be a list of one or more different"),
        ({"image_folder": "nowhere"}, "`image_folder` must be an existing folder"),
    ],
)
def test_other_arguments_are_refused(files, arguments, message):
    refuses(message, read_vqa, **{**files(), **arguments})


def test_other_data_are_refused(files):
    refuses("a text as `data_subtype`", read_vqa, **files(no_split))
    data, options = read_vqa(**files()), {"image_size": 7, "batch_size": 1}
    message = "`max_question_length` must be a positive"
    refuses(message, vqa_dataset, data, **options, max_question_length=0)
    data = VQAData([], ["a"], ["b"])
    refuses("`data` must have questions. Received: an", vqa_dataset, data, **options)


# The rules and examples of the challenge's page on evaluation.
@pytest.mark.parametrize(
    "text, expected",
    [
        ("Yes", "yes"),
        ("yes.", "yes"),
        ("3.5", "3.5"),
        ("U.S.", "us"),
        ("Two dogs", "2 dogs"),
        ("none", "0"),
        ("someone", "someone"),
        ("The cat on a mat", "cat on mat"),
        ("dont know", "don't know"),
        ("couldnt've", "couldn't've"),
        ("twas", "'twas"),
        ("the girl's", "girl's"),
        ("2:50 pm", "2:50 pm"),
        ("100,978", "100978"),
        ("red,white", "red white"),
        ("red, white", "red white"),
        ("left/right", "left right"),
        (" a\n  the ", ""),
        ("well", "well"),
        ("漢字", "漢字"),
    ],
)
def test_answers_are_normalized_as_in_the_challenge(text, expected):
    assert normalize_answer(text) == expected
    assert normalize_answer(expected) == expected


def test_only_texts_are_normalized():
    with pytest.raises(TypeError, match="`text` must be a string. Received: text=3"):
        normalize_answer(3)  # pyright: ignore[reportArgumentType]

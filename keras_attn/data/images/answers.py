"""Answers in words, normalized as the evaluation of the VQA challenge does."""

import itertools
import re

_NUMBERS = "zero one two three four five six seven eight nine ten".split()
_DIGITS = {word: str(number) for number, word in enumerate(_NUMBERS)} | {"none": "0"}
_ARTICLES = ("a", "an", "the")
# Apostrophes are kept for possessives, and colons for times.
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_BETWEEN_DIGITS = re.compile(r"(?<=\d),(?=\d)")
_PERIOD = re.compile(r"\.(?!\d)")
# Words that are often written without their apostrophes, except those that then become
# different words, such as "well", "were" and "its".
_CONTRACTIONS = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've
hasn't haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am
mightn't mightn't've might've mustn't must've needn't not've o'clock oughtn't shan't
should've shouldn't shouldn't've somebody'd somebody'd've somebody'll somebody's
someone'd someone'd've someone'll someone's something'd something'd've something'll
that's there'd there'd've there're there's they'd they'd've they'll they're they've
'twas wasn't we've weren't what'll what're what's what've when's where'd where's
where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't
wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
""".split()


def _without_apostrophes(word: str):
    """The word with some or all of its apostrophes left out."""
    first, *others = word.split("'")
    for marks in itertools.product(("", "'"), repeat=len(others)):
        pairs = zip(marks, others, strict=True)
        yield first + "".join(mark + part for mark, part in pairs)


_CONTRACTED = {
    written: word
    for word in _CONTRACTIONS
    for written in _without_apostrophes(word)
    if written != word
}


def normalize_answer(text: str) -> str:
    """An answer in the form in which the VQA challenge compares answers.

    Lower case; punctuation and articles are left out; the numbers from zero to ten
    become digits, and "none" becomes "0"; contractions get their apostrophes back. Of
    punctuation, a mark between two words becomes a blank and one beside a blank
    vanishes, as do commas between digits ("100,978"); decimal points, apostrophes and
    colons stay. Words are separated by one blank.

    Args:
        text: The answer.

    Returns:
        The normalized answer, which may be empty.

    Raises:
        TypeError: If `text` is not a string.

    Reference:
        Antol et al. 2015, section 3.3 (arXiv:1505.00468), and the challenge's page on
        evaluation.
    """
    if not isinstance(text, str):
        raise TypeError(f"`text` must be a string. Received: text={text!r}")
    text = " ".join(text.lower().split())
    has_number_with_comma = _BETWEEN_DIGITS.search(text) is not None
    cleaned = text
    for mark in _PUNCTUATION:
        is_beside_blank = f"{mark} " in text or f" {mark}" in text
        vanishes = is_beside_blank or has_number_with_comma
        cleaned = cleaned.replace(mark, "" if vanishes else " ")
    words = [_DIGITS.get(word, word) for word in _PERIOD.sub("", cleaned).split()]
    return " ".join(
        _CONTRACTED.get(word, word) for word in words if word not in _ARTICLES
    )

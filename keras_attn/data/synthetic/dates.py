"""Dates as people write them, paired with ISO 8601: the task of the demo.

It can be learned in minutes, and its alignment can be checked by eye: to write `03` the
model has to attend to "march", wherever that is in the sentence.

Every source has exactly one correct target. Ambiguous formats are left out: day and
month as numbers with slashes (`03/04/27` is March in the US and April in the UK) and
years of two digits (`'27` is 1927 or 2027). Dots mean that the day comes first
(`03.04.2027`), as they do everywhere.
"""

import datetime
import random
import string

from keras_attn.checks.arguments import check_positive

FIRST_DAY = datetime.date(1900, 1, 1)
LAST_DAY = datetime.date(2099, 12, 31)
_NUM_DAYS = (LAST_DAY - FIRST_DAY).days + 1

_MONTHS = (
    "january february march april may june "
    "july august september october november december"
).split()
_WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen "
    "fourteen fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = ". . twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh "
    "twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth "
    "nineteenth twentieth twenty-first twenty-second twenty-third twenty-fourth "
    "twenty-fifth twenty-sixth twenty-seventh twenty-eighth twenty-ninth thirtieth "
    "thirty-first"
).split()

FORMATS = (
    "{d} {month} {year}",
    "{d} {mon} {year}",
    "{d}. {month} {year}",
    "{d}-{mon}-{year}",
    "{nth} {month} {year}",
    "{nth} of {month}, {year}",
    "the {nth} of {mon} {year}",
    "{ordinal} {month} {year}",
    "the {ordinal} of {month} {year}",
    "the {ordinal} of {month}, {year_words}",
    "{month} {d}, {year}",
    "{mon} {d} {year}",
    "{mon}. {nth}, {year}",
    "{month} the {ordinal}, {year}",
    "{month} {nth}, {year_words}",
    "{year} {month} {d}",
    "{year}, {month} the {nth}",
    "{dd}.{mm}.{year}",
    "{year}/{mm}/{dd}",
)
# Plain dates are listed several times because they are the most common.
_WEEKDAY_FRAMES = (
    "{date}",
    "{date}",
    "{weekday}, {date}",
    "{wkd} {date}",
    "{date}, a {weekday}",
    "{date} ({wkd})",
)
_NOISE_FRAMES = (
    "{date}",
    "{date}",
    "{date}",
    "on {date}",
    "dated {date}",
    "the day of {date}",
    "it was {date}",
)
# `str.title` would write "3Rd" and "Twenty-First".
_CASES = (str.lower, str.upper, string.capwords)


def make_dates(count: int, seed: int) -> list[tuple[str, str]]:
    """Samples dates from 1900 to 2099, each in a random format.

    Args:
        count: Number of pairs, sampled with replacement.
        seed: The same seed gives the same pairs, in every run.

    Returns:
        `count` pairs (source, target): ("the third of march 2027, a wednesday",
        "2027-03-03"). A weekday, if present, is correct.
    """
    count = check_positive("count", count)
    rng = random.Random(seed)
    return [_pair(rng.randrange(_NUM_DAYS), rng) for _ in range(count)]


def split_dates(
    train: int, test: int, seed: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Samples a training set, and a test set of different days.

    No day of the test set is in the training set in any format, so test accuracy
    measures generalization, not memorization.

    Args:
        train: Number of training pairs; days may repeat.
        test: Number of test pairs, all of different days.
        seed: The same seed gives the same split, in every run.

    Returns:
        The training pairs and the test pairs, as from `make_dates`.
    """
    train = check_positive("train", train)
    test = check_positive("test", test)
    if test > _NUM_DAYS // 2:
        raise ValueError(
            f"`test` must be at most {_NUM_DAYS // 2}, half of the days from "
            f"{FIRST_DAY} to {LAST_DAY}, because training leaves them out. "
            f"Received: test={test}"
        )
    rng = random.Random(seed)
    unseen = rng.sample(range(_NUM_DAYS), test)
    held_out = frozenset(unseen)
    seen = [day for day in range(_NUM_DAYS) if day not in held_out]
    training = [_pair(rng.choice(seen), rng) for _ in range(train)]
    return training, [_pair(day, rng) for day in unseen]


def _pair(offset: int, rng: random.Random) -> tuple[str, str]:
    """One pair (source, target) of the day `offset` days after `FIRST_DAY`."""
    day = FIRST_DAY + datetime.timedelta(days=offset)
    words = _words(day)
    text = rng.choice(FORMATS).format_map(words)
    text = rng.choice(_WEEKDAY_FRAMES).format_map({**words, "date": text})
    text = rng.choice(_NOISE_FRAMES).format(date=text)
    return rng.choice(_CASES)(text), day.isoformat()


def _words(day: datetime.date) -> dict[str, str]:
    """The fields of a format, for one day."""
    month, weekday = _MONTHS[day.month - 1], _WEEKDAYS[day.weekday()]
    return {
        "d": str(day.day),
        "dd": f"{day.day:02d}",
        "mm": f"{day.month:02d}",
        "year": str(day.year),
        "nth": f"{day.day}{_suffix(day.day)}",
        "ordinal": _ORDINALS[day.day - 1],
        "year_words": _year_words(day.year),
        "month": month,
        "mon": month[:3],
        "weekday": weekday,
        "wkd": weekday[:3],
    }


def _suffix(number: int) -> str:
    """Suffix of an ordinal in digits: 1st, 2nd, 3rd, but 11th, 12th, 13th."""
    if number in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _year_words(year: int) -> str:
    """A year in words: "nineteen oh five", "two thousand and five"."""
    century, rest = divmod(year, 100)
    if century == 20 and rest < 10:
        return "two thousand" + (f" and {_NUMBERS[rest]}" if rest else "")
    if rest == 0:
        return f"{_number_words(century)} hundred"
    if rest < 10:
        return f"{_number_words(century)} oh {_NUMBERS[rest]}"
    return f"{_number_words(century)} {_number_words(rest)}"


def _number_words(number: int) -> str:
    """A number from 0 to 99: "nineteen", "ninety-seven"."""
    if number < 20:
        return _NUMBERS[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens] + (f"-{_NUMBERS[ones]}" if ones else "")

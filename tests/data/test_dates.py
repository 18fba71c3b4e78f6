import datetime
import re

import pytest
from refusals import refuses

from keras_attn.data import make_dates, split_dates
from keras_attn.data.synthetic import dates as dates_module

MONTHS = (
    "january february march april may june "
    "july august september october november december"
).split()
WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()


def test_a_seed_determines_the_dates():
    assert make_dates(101, seed=7) == make_dates(101, seed=7)
    assert make_dates(101, seed=7) != make_dates(101, seed=8)
    # Fixed values, because other samples would change every published result.
    assert make_dates(5, seed=3) == [
        ("1985/05/25, A SATURDAY", "1985-05-25"),
        ("dated 2070/02/13", "2070-02-13"),
        ("the twenty-second of may 2068, a tuesday", "2068-05-22"),
        ("ON 04.10.2068, A THURSDAY", "2068-10-04"),
        ("Nineteenth January 1954 (tue)", "1954-01-19"),
    ]


def test_targets_are_iso_dates_of_two_centuries():
    years = {
        datetime.date.fromisoformat(target).year for _, target in make_dates(5003, 1)
    }
    assert min(years) == 1900
    assert max(years) == 2099


def test_weekdays_and_months_are_correct():
    checked = 0
    for source, target in make_dates(2003, seed=2):
        date = datetime.date.fromisoformat(target)
        words = re.findall(r"[a-z]+", source.lower())
        for word in words:
            for index, weekday in enumerate(WEEKDAYS):
                if word in (weekday, weekday[:3]):
                    assert index == date.weekday(), (source, target)
                    checked += 1
        named = [m for m in MONTHS if m in words or m[:3] in words]
        assert named in ([MONTHS[date.month - 1]], []), (source, target)
    assert checked > 1000


@pytest.mark.parametrize("template", dates_module.FORMATS)
def test_every_format_is_unambiguous(template):
    days = [
        datetime.date(year, month, day)
        for year in (1900, 1905, 1987, 2000, 2003, 2010, 2099)
        for month in range(1, 13)
        for day in range(1, 29)
    ]
    written = {template.format_map(dates_module._words(day)) for day in days}
    assert len(written) == len(days)


def test_formats_are_diverse():
    sources = [source for source, _ in make_dates(1009, seed=5)]
    assert len(dates_module.FORMATS) >= 12
    for pattern in (
        r"\bthe third of",
        r"twenty-first",
        r"3rd",
        r"TWENTY",
        r"^On ",
        r"the day of",
        r", a (mon|tues|wednes)day",
        r"^(mon|tue|wed) ",
        r"nineteen \w+",
        r"two thousand",
        r"\d\d\.\d\d\.\d{4}",
        r"\d{4}/\d\d/\d\d",
    ):
        assert any(re.search(pattern, source) for source in sources), pattern


def test_years_in_words():
    words = {
        1900: "nineteen hundred",
        1905: "nineteen oh five",
        1913: "nineteen thirteen",
        1997: "nineteen ninety-seven",
        2000: "two thousand",
        2009: "two thousand and nine",
        2040: "twenty forty",
    }
    assert {year: dates_module._year_words(year) for year in words} == words


def test_suffixes_of_ordinals():
    expected = "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 23rd 30th 31st".split()
    numbers = [int(ordinal[:-2]) for ordinal in expected]
    assert [f"{n}{dates_module._suffix(n)}" for n in numbers] == expected


def test_a_split_shares_no_day_and_no_source():
    train, test = split_dates(train=20_011, test=1_009, seed=11)
    assert (len(train), len(test)) == (20_011, 1_009)
    assert not {target for _, target in train} & {target for _, target in test}
    assert not {source for source, _ in train} & {source for source, _ in test}
    assert len({target for _, target in test}) == 1_009
    assert (train, test) == split_dates(train=20_011, test=1_009, seed=11)


@pytest.mark.parametrize("count", [0, -1, 2.5, True])
def test_counts_must_be_positive_integers(count):
    refuses(r"`count` must be .*Received: count=", make_dates, count, seed=0)
    refuses(r"`train` must be .*Received: train=", split_dates, count, 3, seed=0)
    refuses(r"`test` must be .*Received: test=", split_dates, 3, count, seed=0)


def test_a_test_set_of_nearly_all_days_is_refused():
    refuses(r"`test` must be at most 36524.*test=36525", split_dates, 3, 36525, seed=0)

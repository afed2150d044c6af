"""Regular expressions over names: what `re` says, in linear time, without what RE2 leaves out."""

from __future__ import annotations

import random
import re
import time
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ErrorCode, Refused
from semel.machines.name_pattern import NamePattern

EXPRESSIONS = [
    "a.*",
    "(a+)+$",
    "[a-c]{2,3}x?",
    "^led.*",
    "a|b|",
    "[^x-z]+",
    r"\d+-\w*",
    "(foo|bar)*baz",
    "a{0,2}b{3}",
    "a{2,}?",
    ".*",
    "(?i)LEDGER",
    "(?i:a)b",
    r"ledger\.v[0-9]+",
    "(|a)*",
    r"[\d_]+",
    "",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(st.text("abcxyzfoledgrLE123-_.v", max_size=8))
def test_it_matches_what_re_matches(expression: str, name: str) -> None:
    assert NamePattern(expression).matches(name) is bool(re.fullmatch(expression, name, re.ASCII))


def test_the_end_of_text_is_written_as_re2_writes_it() -> None:
    assert NamePattern(r"led.*\z").matches("ledger")


@pytest.mark.parametrize(
    ("expression", "matching", "others"),
    [
        ("[[:alpha:]]+", ["ledger", "A"], ["ledger1", ":", "a]"]),
        ("[^[:digit:]_]+", ["ab"], ["a1", "a_"]),
        ("[][:upper:]-]*", ["]A-"], ["a", "["]),
        ("[[a]b", ["[b", "ab"], ["b"]),
        ("[a&&b]+", ["a&b"], ["c"]),
        ("[--/]", ["-", ".", "/"], [",", "0"]),
        ("[+--]", ["+", ",", "-"], ["*", "."]),
        ("[a,--/]", ["a", ",", "-", "/"], ["."]),
        ("[^a-c--]", ["d", "."], ["b", "-"]),
        (r"\[[[:punct:]x]", ["[.", "[x", "[["], ["a"]),
        (r"a{,2}b", ["a{,2}b"], ["ab"]),
    ],
)
def test_classes_mean_what_they_mean_in_re2(expression: str, matching: list[str], others: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pattern = NamePattern(expression)
    assert [name for name in matching + others if pattern.matches(name)] == matching


@pytest.mark.parametrize(
    "expression",
    [
        "((((){1000}){1000}){1000}){1000}",
        "(((?:){1000}){1000}){1000}",
        "((((){1000}){1000}){1000})*",
        "[" + "".join(map(chr, range(0x100, 0x1100))) + "]{1000}",
        "a|" * 100_000,
        "\\" * 10_000_000,
        "[[:nothing:]]",
    ],
)
def test_what_would_take_long_to_read_is_refused(expression: str) -> None:
    started = time.process_time()
    with pytest.raises(Refused) as refused:
        NamePattern(expression)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "expression",
    [r"(a)\1", "(?=a)b", "(?<!a)b", "[", "(", "a**", "a{2000}", "(a{1000}){1000}", r"\bfoo", "(?P<n>a)(?P=n)"]
    + ["[a--b]"],
)
def test_what_re2_leaves_out_is_refused(expression: str) -> None:
    with warnings.catch_warnings(), pytest.raises(Refused) as refused:
        warnings.simplefilter("error")
        NamePattern(expression)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("expression", ["(a|aa)*(a+)+b", "(.?){900}b", ".*.*.*.*.*.*b", "((a{1,20}){1,50})b"])
def test_no_expression_can_hang_the_broker_however_many_names_there_are(expression: str) -> None:
    started = time.process_time()
    pattern = NamePattern(expression)
    assert not any(pattern.matches(f"{number:04d}" + "a" * 245) for number in range(300))
    assert time.process_time() - started < 5


def test_a_hundred_thousand_names_are_matched_quickly() -> None:
    started = time.process_time()
    pattern = NamePattern("app-[0-9]+-(a|b)")
    assert sum(pattern.matches(f"app-{number}-a") for number in range(100_000)) == 100_000
    assert time.process_time() - started < 5


def test_names_without_anything_in_common_are_matched_quickly_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for the next name goes by what takes a letter, not by the letter: 300 names took twenty seconds."""
    chance = random.Random(1)
    names = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789.-_", k=60)) for _ in range(50)]
    step, steps = NamePattern._step, [0]

    def counted(self: NamePattern, *key: Any) -> frozenset[int]:
        steps[0] += 1
        return step(self, *key)

    monkeypatch.setattr(NamePattern, "_step", counted)
    assert all(map(NamePattern(".?" * 100).matches, names))
    assert steps[0] <= 60

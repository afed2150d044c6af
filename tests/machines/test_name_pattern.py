"""Regular expressions over names: what `re` says, in linear time, without what RE2 leaves out."""

from __future__ import annotations

import re
import time

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
    "expression",
    [r"(a)\1", "(?=a)b", "(?<!a)b", "[", "(", "a**", "a{2000}", "(a{1000}){1000}", r"\bfoo", "(?P<n>a)(?P=n)"],
)
def test_what_re2_leaves_out_is_refused(expression: str) -> None:
    with pytest.raises(Refused) as refused:
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

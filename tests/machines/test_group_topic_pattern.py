"""Regular expressions over topic names: what `re` says, in linear time, without what RE2 leaves out."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ErrorCode, Refused
from semel.machines.topic_pattern import TopicPattern

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
    assert TopicPattern(expression).matches(name) is bool(re.fullmatch(expression, name, re.ASCII))


def test_the_end_of_text_is_written_as_re2_writes_it() -> None:
    assert TopicPattern(r"led.*\z").matches("ledger")


@pytest.mark.parametrize(
    "expression",
    [r"(a)\1", "(?=a)b", "(?<!a)b", "[", "(", "a**", "a{2000}", "(a{1000}){1000}", r"\bfoo", "(?P<n>a)(?P=n)"],
)
def test_what_re2_leaves_out_is_refused(expression: str) -> None:
    with pytest.raises(Refused) as refused:
        TopicPattern(expression)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_no_expression_can_hang_the_broker() -> None:
    started = time.monotonic()
    assert not TopicPattern("(a|aa)*(a+)+b").matches("a" * 249)
    assert time.monotonic() - started < 1

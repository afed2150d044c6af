"""Patterns of transactional ids: what RE2 would match is matched, what would hang is refused."""

from __future__ import annotations

import pytest

from semel.errors import ErrorCode, Refused
from semel.machines.transaction_patterns import IdPattern


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("pay.*", "payments", True),
        ("pay", "payments", False),
        ("app-[0-9]+-(a|b)", "app-12-b", True),
        ("app-[0-9]{1,3}", "app-1234", False),
        (".*-stage-.*", "etl-stage-7", True),
        ("(?i)PAY.*", "payments", True),
    ],
)
def test_the_whole_id_must_match(pattern: str, text: str, matches: bool) -> None:
    assert IdPattern(pattern).matches(text) is matches


@pytest.mark.parametrize(
    "pattern",
    ["(", "[a", "*", "(a+)+", "(a|a)*b", "(.*)*", "(a)\\1", "(?=a)a", ".*.*.*.*.*x", "a" * 513, "((a{1,50}){1,50})x"],
)
def test_a_pattern_that_is_broken_or_could_hang_the_broker_is_refused(pattern: str) -> None:
    with pytest.raises(Refused) as refusal:
        IdPattern(pattern)
    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION

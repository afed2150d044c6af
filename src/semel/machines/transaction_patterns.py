"""Regular expressions from clients, matched in time that grows with the text and never explodes.

Kafka matches with RE2, which has no backtracking. Python's engine has, so what makes it explode (a repetition within a
repetition, a choice within a repetition, references back, looking around, many unbounded repetitions) is refused with
INVALID_REGULAR_EXPRESSION instead of stopping the broker for everyone.
"""

from __future__ import annotations

import re
from re import _constants as syntax  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from semel.errors import ErrorCode, Refused

MAX_PATTERN_CHARS = 512
MAX_UNBOUNDED_REPEATS = 4
#: A repetition up to this often is no danger within another one.
SMALL_REPEAT = 16

_REFUSED = (syntax.GROUPREF, syntax.GROUPREF_EXISTS, syntax.ASSERT, syntax.ASSERT_NOT)
_REPEATS = (syntax.MAX_REPEAT, syntax.MIN_REPEAT, syntax.POSSESSIVE_REPEAT)


class IdPattern:
    """A pattern a whole transactional id must match."""

    __slots__ = ("_compiled",)

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"the pattern is over {MAX_PATTERN_CHARS} characters")
        try:
            repeats = _large_repeats(parser.parse(pattern), within=False)
            self._compiled = re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r}: {error}") from error
        if repeats > MAX_UNBOUNDED_REPEATS:
            raise Refused(
                ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r} repeats more than {MAX_UNBOUNDED_REPEATS} times"
            )

    def matches(self, text: str) -> bool:
        return self._compiled.fullmatch(text) is not None


def _large_repeats(parsed: Any, *, within: bool) -> int:
    """How many large repetitions there are; one within another, or around a choice, is refused."""
    found = 0
    for operation, argument in parsed:
        if operation in _REFUSED:
            raise re.error("references and assertions are not served")
        if operation in _REPEATS:
            _, most, body = argument
            large = most == syntax.MAXREPEAT or most > SMALL_REPEAT
            if large and within:
                raise re.error("a repetition within a repetition is not served")
            found += large + _large_repeats(body, within=within or large)
        elif operation is syntax.BRANCH:
            if within:
                raise re.error("a choice within a repetition is not served")
            found += sum(_large_repeats(branch, within=within) for branch in argument[1])
        elif operation is syntax.SUBPATTERN:
            found += _large_repeats(argument[-1], within=within)
        elif operation is syntax.ATOMIC_GROUP:
            found += _large_repeats(argument, within=within)
    return found

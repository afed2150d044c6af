"""Regular expressions over topic names, matched in linear time.

A subscription by regular expression comes from any client, so it must not be able to hang the broker: there is no
backtracking here. Python's parser reads the expression, a set of positions walks it in step with the name. What RE2
leaves out for the same reason (backreferences, look-around) is refused, as Kafka refuses it.
"""

from __future__ import annotations

import re
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from semel.errors import ErrorCode, Refused

#: RE2's own bound on a counted repetition.
_MOST_REPEATS = 1000
#: The most steps an expression may have once its repetitions are written out.
_MOST_STEPS = 10_000

#: A step is what it needs to see and where it leads; without a need it leads on at once.
_Step = tuple[Any, tuple[int, ...]]


class TopicPattern:
    """A compiled expression; `matches` asks for the whole name, as Kafka does."""

    __slots__ = ("_start", "_steps")

    def __init__(self, expression: str) -> None:
        try:
            # RE2 writes the end of the text as \\z.
            tree = parser.parse(re.sub(r"(?<!\\)((?:\\\\)*)\\z", r"\1\\Z", expression))
        except (re.error, OverflowError, RecursionError) as error:
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{expression}: {error}") from error
        self._steps: list[_Step] = []
        ignore_case = bool(tree.state.flags & re.IGNORECASE)
        self._start = self._sequence(list(tree), self._add(None, ()), ignore_case)

    def matches(self, name: str) -> bool:
        positions = self._closure({self._start}, at_start=True, at_end=not name)
        for index, character in enumerate(name):
            following = {
                target
                for position in positions
                for need, targets in (self._steps[position],)
                if callable(need) and need(character)
                for target in targets
            }
            positions = self._closure(following, at_start=False, at_end=index == len(name) - 1)
            if not positions:
                return False
        return 0 in positions

    def _closure(self, positions: set[int], *, at_start: bool, at_end: bool) -> set[int]:
        """The positions, and everything they lead to without another character."""
        seen: set[int] = set()
        waiting = list(positions)
        while waiting:
            position = waiting.pop()
            if position in seen:
                continue
            seen.add(position)
            need, targets = self._steps[position]
            if need is None or (need == "start" and at_start) or (need == "end" and at_end):
                waiting.extend(targets)
        return seen

    # Building, back to front: every method is told what follows and returns where its part begins.

    def _add(self, need: Any, targets: tuple[int, ...]) -> int:
        if len(self._steps) >= _MOST_STEPS:
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, "the expression is too large")
        self._steps.append((need, targets))
        return len(self._steps) - 1

    def _sequence(self, items: list[Any], after: int, ignore_case: bool) -> int:
        for item in reversed(items):
            after = self._item(item, after, ignore_case)
        return after

    def _item(self, item: Any, after: int, ignore_case: bool) -> int:
        operation, argument = item
        if operation in (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN):
            return self._add(_test(operation, argument, ignore_case), (after,))
        if operation is ops.BRANCH:
            branches = [self._sequence(list(branch), after, ignore_case) for branch in argument[1]]
            return self._add(None, tuple(branches))
        if operation is ops.SUBPATTERN:
            _, flags_on, flags_off, inner = argument
            ignoring = (ignore_case or bool(flags_on & re.IGNORECASE)) and not flags_off & re.IGNORECASE
            return self._sequence(list(inner), after, ignoring)
        if operation in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            least, most, inner = argument
            return self._repeat(list(inner), least, None if most is ops.MAXREPEAT else most, after, ignore_case)
        if operation is ops.AT and argument in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
            return self._add("start", (after,))
        if operation is ops.AT and argument in (ops.AT_END, ops.AT_END_STRING):
            return self._add("end", (after,))
        raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{str(operation).lower()} is not supported")

    def _repeat(self, inner: list[Any], least: int, most: int | None, after: int, ignore_case: bool) -> int:
        if max(least, most or 0) > _MOST_REPEATS:
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"more than {_MOST_REPEATS} repetitions")
        if most is None:
            # The loop is made before its body, which leads back to it.
            loop = self._add(None, ())
            body = self._sequence(inner, loop, ignore_case)
            self._steps[loop] = (None, (body, after))
            begin = loop
        else:
            begin = after
            for _ in range(most - least):
                begin = self._add(None, (self._sequence(inner, begin, ignore_case), after))
        for _ in range(least):
            begin = self._sequence(inner, begin, ignore_case)
        return begin


_CATEGORIES: dict[Any, str] = {
    ops.CATEGORY_DIGIT: r"[0-9]",
    ops.CATEGORY_NOT_DIGIT: r"[^0-9]",
    ops.CATEGORY_WORD: r"[0-9A-Za-z_]",
    ops.CATEGORY_NOT_WORD: r"[^0-9A-Za-z_]",
    ops.CATEGORY_SPACE: r"[\t\n\f\r ]",
    ops.CATEGORY_NOT_SPACE: r"[^\t\n\f\r ]",
}


def _test(operation: Any, argument: Any, ignore_case: bool) -> Any:
    """A function from a character to whether this step may take it. One character cannot backtrack, so `re` may."""
    if operation is ops.ANY:
        source = r"[^\n]"
    elif operation is ops.IN:
        negated = argument and argument[0][0] is ops.NEGATE
        alternatives = [_one_of(part) for part in (argument[1:] if negated else argument)]
        source = f"(?!{'|'.join(alternatives)})[\\s\\S]" if negated else "|".join(alternatives)
    else:
        character = re.escape(chr(argument))
        source = character if operation is ops.LITERAL else f"(?!{character})[\\s\\S]"
    return re.compile(source, re.IGNORECASE if ignore_case else 0).fullmatch


def _one_of(part: Any) -> str:
    operation, argument = part
    if operation is ops.LITERAL:
        return re.escape(chr(argument))
    if operation is ops.RANGE:
        return f"[{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}]"
    if operation is ops.CATEGORY and argument in _CATEGORIES:
        return _CATEGORIES[argument]
    raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{str(argument).lower()} is not supported")

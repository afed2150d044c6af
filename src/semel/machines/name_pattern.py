"""Regular expressions over names of topics and transactional ids, matched in linear time.

Such an expression comes from any client, so it must not be able to hang the broker: there is no backtracking here.
Python's parser reads the expression, a set of positions walks it in step with the name. What RE2 leaves out for the
same reason (backreferences, look-around) is refused, as Kafka refuses it.
"""

from __future__ import annotations

import re
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from semel.errors import ErrorCode, Refused

#: RE2's own bound on a counted repetition.
_MOST_REPEATS = 1000
#: The longest expression that is read, in characters.
_LONGEST = 10_000
#: The most steps an expression may have once its repetitions are written out.
_MOST_STEPS = 2_500
#: The most work to write them out: parts that were visited, and what may stand at a place. A part without a step, as
#: in `((){1000}){1000}`, is work, too.
_MOST_WORK = 25_000
#: How many positions are kept, in all sets of them that were reached so far.
_MOST_REMEMBERED = 500_000

#: A step is what it needs to see and where it leads; without a need it leads on at once.
_Step = tuple[Any, tuple[int, ...]]
_Positions = frozenset[int]


class NamePattern:
    """A compiled expression; `matches` asks for the whole name, as Kafka does."""

    __slots__ = ("_alike", "_begin", "_following", "_reached", "_remembered", "_start", "_steps", "_takers", "_work")

    def __init__(self, expression: str) -> None:
        if len(expression) > _LONGEST:
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"more than {_LONGEST} characters")
        try:
            tree = parser.parse(_for_python(expression))
        except (re.error, OverflowError, RecursionError) as error:
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{expression}: {error}") from error
        self._steps: list[_Step] = []
        self._work = 0
        ignore_case = bool(tree.state.flags & re.IGNORECASE)
        self._start = self._sequence(list(tree), self._add(None, ()), ignore_case)
        #: What was worked out for one name is kept for the next: names are alike, and there may be very many.
        self._takers: dict[str, frozenset[int]] = {}
        #: By what takes a character: most characters are alike for most expressions.
        self._following: dict[tuple[_Positions, _Positions, bool], _Positions] = {}
        self._alike: dict[_Positions, _Positions] = {}
        self._reached: dict[_Positions, _Positions] = {}
        self._remembered = 0
        self._begin = self._closure({self._start}, at_start=True, at_end=False)

    def matches(self, name: str) -> bool:
        # The same for every name, and the largest of all where much may be left out.
        positions = self._begin if name else self._closure({self._start}, at_start=True, at_end=True)
        last = len(name) - 1
        for index, character in enumerate(name):
            takers = self._takers.get(character)
            if takers is None:
                takers = self._takers_of(character)
            key = (positions, takers, index == last)
            following = self._following.get(key)
            if following is None:
                following = self._step(*key)
                if following not in self._reached:
                    self._remembered += len(following)
                if self._remembered < _MOST_REMEMBERED:
                    self._following[key] = following = self._reached.setdefault(following, following)
            positions = following
            if not positions:
                return False
        return 0 in positions

    def _takers_of(self, character: str) -> _Positions:
        """The positions whose step takes this character."""
        takers = frozenset(
            position for position, (need, _) in enumerate(self._steps) if callable(need) and need(character)
        )
        self._takers[character] = takers = self._alike.setdefault(takers, takers)
        return takers

    def _step(self, positions: _Positions, takers: _Positions, at_end: bool) -> _Positions:
        taken = {target for position in positions & takers for target in self._steps[position][1]}
        return self._closure(taken, at_start=False, at_end=at_end)

    def _closure(self, positions: set[int], *, at_start: bool, at_end: bool) -> _Positions:
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
        return frozenset(seen)

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
        self._work += len(argument) if operation is ops.IN else 1
        if self._work > _MOST_WORK:
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, "the expression is too large")
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
        if least > _MOST_REPEATS or (most is not None and most > _MOST_REPEATS):
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"more than {_MOST_REPEATS} repetitions")
        # An empty part has no item to count.
        self._work += most or least
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


_NAMED_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_CLASS_BEGINS = re.compile(r"\[\^?\]?")
_NAMED_CLASS = re.compile(r"\[:(\w+):\]")


def _for_python(expression: str) -> str:
    """The expression as Python reads it, where RE2 reads something else.

    RE2 writes the end of the text as \\z. Inside a class it knows `[:alpha:]`, and any other bracket is itself. What
    Python may read as an operation on sets one day, and warns about, is escaped.
    """
    parts: list[str] = []
    at, in_class = 0, False
    # In a class: whether a `-` would begin a range, or is the end of one.
    after_one = ends_range = False
    while at < len(expression):
        found = _ESCAPE.match(expression, at)
        if found is not None:
            parts.append(r"\Z" if found[0] == r"\z" and not in_class else found[0])
            after_one, ends_range = not ends_range, False
        elif not in_class:
            found = _CLASS_BEGINS.match(expression, at)
            in_class = found is not None
            after_one, ends_range = found is not None and found[0].endswith("]"), False
            # `a{,2}` is no repetition.
            literal = expression.startswith("{,", at)
            parts.append(found[0] if found is not None else "\\{" if literal else expression[at])
        elif (found := _NAMED_CLASS.match(expression, at)) is not None:
            if found[1] not in _NAMED_CLASSES:
                raise re.error(f"no class of characters is named {found[0]}")
            parts.append(_NAMED_CLASSES[found[1]])
            after_one, ends_range = True, False
        elif expression[at] == "-" and after_one and not expression.startswith("]", at + 1):
            parts.append("-")
            after_one, ends_range = False, True
        else:
            in_class = expression[at] != "]"
            parts.append("\\" + expression[at] if expression[at] in "[&|~-" else expression[at])
            after_one, ends_range = not ends_range, False
        at += 1 if found is None else len(found[0])
    return "".join(parts)


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

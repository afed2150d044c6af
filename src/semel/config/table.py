"""Settings and tables of settings: parsing, checking and writing of values.

A value is checked when it is parsed, never when it is used. An unknown name is refused, and the error names the nearest
known one. Kafka's settings that mean nothing here are accepted and ignored. Those whose promise cannot be kept are
refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

#: The range of each type of number, as in Kafka.
_RANGES: dict[str, tuple[int, int]] = {
    "short": (-(2**15), 2**15 - 1),
    "int": (-(2**31), INT32_MAX),
    "long": (-(2**63), INT64_MAX),
}
_TOO_LARGE = 2**64
#: The longest text, in bytes, in a message of any version.
_TEXT_MAX_BYTES = 2**15 - 1
_DIGITS_MAX = 19
_WHOLE = re.compile(r"[+-]?[0-9]+")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
#: How many characters of a wrong value an error shows.
_SHOWN = 80

#: A setting of one listener. Kafka writes the listener's name in lower case here.
OF_A_LISTENER = re.compile(r"listener\.name\.(?P<listener>[^.]+)\.(?P<setting>.+)", re.DOTALL)
#: What may stand after a listener's name and the name of a SASL mechanism.
_OF_MECHANISMS = ("sasl.", "connections.max.reauth.ms")

#: How a row's kind is reported by DescribeConfigs (Kafka's ConfigResponse types).
KIND_CODES = {
    "bool": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}


class ConfigError(ValueError):
    """An unknown setting or a wrong value. The message names the setting and what it accepts."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name, its type, and what it is for."""

    name: str
    kind: str
    default: Any
    doc: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    #: What a list may hold, and what it is called: a pattern for each item. `*` alone is every one of them.
    items: tuple[str, str] | None = None
    #: Whether an empty value is refused: an empty address would mean every address.
    not_empty: bool = False
    #: The broker-wide setting a topic falls back to, under Kafka's name for it.
    broker_name: str | None = None
    #: Whether the value may be in any case and is stored in upper case.
    upper: bool = False

    @property
    def is_secret(self) -> bool:
        """Whether the value may not be shown: not in a log, an error, or a description."""
        return self.kind == "password"

    def read(self, given: object) -> Any:
        """Convert and check a value that a person or a program gave. `ConfigError` says what is wrong with it."""
        if given is None:
            return None
        value = self._convert(given)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            least, most = self.bounds
            if least is not None and value < least:
                raise ConfigError(f"{self._said(given)}: must be at least {_plain(least)}")
            if most is not None and value > most:
                raise ConfigError(f"{self._said(given)}: must be at most {_plain(most)}")
        if self.not_empty and value in ("", ()):
            raise ConfigError(f"{self.name} is empty: give it a value, or leave it out")
        if self.items is not None and value != ("*",):
            pattern, wanted = self.items
            if not all(re.fullmatch(pattern, item) for item in value):
                raise ConfigError(f"{self._said(given)}: must be * or a list of {wanted}")
        if self.choices:
            for item in value if isinstance(value, tuple) else (value,):
                if self.write(item) not in self.choices:
                    allowed = ", ".join(choice or "nothing" for choice in self.choices)
                    raise ConfigError(f"{self._said(given)}: must be one of {allowed}")
        return value

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The smallest and the largest value: the bounds of the setting, otherwise those of its type."""
        lowest, highest = _RANGES.get(self.kind, (None, None))
        return lowest if self.least is None else self.least, highest if self.most is None else self.most

    def _said(self, given: object) -> str:
        """The setting and its value for an error message; a long value is shortened, a secret is not shown."""
        if self.is_secret:
            return self.name
        text = str(given)
        return f"{self.name}={text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}"

    def _convert(self, given: object) -> Any:
        text = given.strip() if isinstance(given, str) else given
        try:
            if self.kind == "bool":
                if isinstance(text, bool):
                    return text
                return {"true": True, "false": False}[str(text).lower()]
            if self.kind in _RANGES:
                if isinstance(text, int) and not isinstance(text, bool):
                    return text
                # int() and float() take more than a setting should: digits of every script, "1_000", "nan", "inf".
                if not isinstance(text, str) or not _WHOLE.fullmatch(text):
                    raise ValueError
                digits = text.lstrip("+-").lstrip("0")
                if len(digits) > _DIGITS_MAX:
                    # Larger than any type, and perhaps than int() accepts: any number beyond the range will do.
                    return _TOO_LARGE if not text.startswith("-") else -_TOO_LARGE
                return int(text)
            if self.kind == "double":
                if isinstance(text, bool) or not (isinstance(text, (int, float)) or _NUMBER.fullmatch(str(text))):
                    raise ValueError
                number = float(text)  # type: ignore[arg-type]
                if not isfinite(number):
                    raise ValueError
                return number
            if self.kind == "list":
                items = text.split(",") if isinstance(text, str) else text
                if not isinstance(items, (list, tuple, set, frozenset)):
                    raise ValueError
                return tuple(self._writable(str(item).strip()) for item in items if str(item).strip())
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError, OverflowError):
            wanted = {"bool": "true or false", "double": "a number", "list": "a list, or text with commas"}
            raise ConfigError(f"{self._said(given)}: must be {wanted.get(self.kind, 'a whole number')}") from None
        if self.kind == "callable":
            if callable(given) or (isinstance(text, str) and _FUNCTION.fullmatch(text)):
                return given if callable(given) else text
            raise ConfigError(f"{self._said(given)}: must be a function, or its name as module:function")
        if isinstance(text, str):
            if self.kind == "password":
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise ConfigError(f"{self.name}: cannot be written as UTF-8") from None
                return given  # spaces may belong to it, and it never goes into a message whole
            return self._writable(text.upper() if self.upper else text)
        if isinstance(given, (int, float)) and not isinstance(given, bool):
            return str(given)  # acks=1
        raise ConfigError(f"{self._said(given)}: must be text")

    def _writable(self, text: str) -> str:
        """Text that fits a message of any version: a name that does not would end a client in the midst of its work."""
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise ConfigError(f"{self._said(ascii(text))}: cannot be written as UTF-8") from None
        if size > _TEXT_MAX_BYTES:
            raise ConfigError(f"{self.name} has {size} bytes: {_TEXT_MAX_BYTES} are the most")
        return text

    def write(self, value: Any) -> str | None:
        """The value as Kafka's tools print it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


class Values:
    """Parsed settings: by Kafka's name with `[]`, or as an attribute with underscores for dots."""

    __slots__ = ("_by_attribute", "_values", "explicit", "passed_by", "spelt", "table")

    def __init__(
        self,
        table: Table,
        values: dict[str, Any],
        explicit: frozenset[str],
        passed_by: Mapping[str, str] | None = None,
    ) -> None:
        self.table = table
        self._values = values
        self.explicit = explicit
        #: Settings that were given and have no effect here.
        self.passed_by = passed_by or {}
        #: Settings that were given by another name than the table's, and that name.
        self.spelt: Mapping[str, str] = {}
        #: Made when it is first asked for: most settings are read by their names.
        self._by_attribute: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name in Values.__slots__:
            raise AttributeError(name)  # asked for before it was set, as `copy` does
        if self._by_attribute is None:
            values = self._values.items()
            self._by_attribute = {one.replace(".", "_").replace("-", "_"): value for one, value in values}
        try:
            return self._by_attribute[name]
        except KeyError:
            raise AttributeError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __repr__(self) -> str:
        given = ", ".join(
            f"{name}={'[hidden]' if self.table[name].is_secret else repr(self._values[name])}"
            for name in sorted(self.explicit)
        )
        return f"<{self.table.noun} settings: {given or 'all defaults'}>"

    @contextmanager
    def named_as_given(self) -> Iterator[None]:
        """A `ConfigError` in this block names settings as they were given, not as the table has them."""
        try:
            yield
        except ConfigError as error:
            told = str(error)
            for name, given in self.spelt.items():
                told = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\w)", given, told)
            raise ConfigError(told) from None

    def text(self, name: str) -> str | None:
        """One value as Kafka's tools print it."""
        return self.table[name].write(self._values[name])


def _is_listed(name: str, listed: tuple[str, ...]) -> bool:
    return any(name.startswith(one) if one.endswith(".") else name == one for one in listed)


class Table:
    """All settings of a broker, a topic, a producer and so on."""

    def __init__(
        self,
        noun: str,
        rows: list[Setting],
        passed_by: tuple[str, ...] = (),
        refused: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        of_listeners: tuple[str, ...] = (),
    ) -> None:
        self.noun = noun
        self.rows = {row.name: row for row in rows}
        #: Kafka's settings that are accepted and ignored; a name that ends in a dot is a prefix.
        self.passed_by = passed_by
        #: Kafka's settings that are refused, with the reason: their promise cannot be kept here.
        self.refused = refused or {}
        #: Other spellings of rows.
        self.aliases = aliases or {}
        #: Rows that one listener may have for itself; a name that ends in a dot is a prefix.
        self.of_listeners = of_listeners

    def __getitem__(self, name: str) -> Setting:
        found = self.find(name)
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.rows.values())

    def find(self, name: str) -> Setting | None:
        """The setting of this name, also one that a listener has for itself; None if there is none."""
        if name in self.rows or not self.of_listeners:
            return self.rows.get(name)
        parts = OF_A_LISTENER.fullmatch(name)
        if parts is None:
            return None
        of_listener = parts["setting"]
        if of_listener not in self.rows and not of_listener.startswith("sasl."):
            # A setting of one SASL mechanism, as in listener.name.NAME.plain.sasl.jaas.config.
            of_listener = of_listener.partition(".")[2]
            if not of_listener.startswith(_OF_MECHANISMS):
                return None
        if of_listener not in self.rows or not _is_listed(of_listener, self.of_listeners):
            return None
        return replace(self.rows[of_listener], name=name, default=None)

    def row(self, name: str) -> Setting:
        """The setting of this name. `ConfigError` names the nearest one."""
        if (found := self.find(name)) is not None:
            return found
        if name in self.refused:
            raise ConfigError(f"{self.noun} setting '{name}' is not served: {self.refused[name]}")
        import difflib  # rarely needed, and slow to import

        parts = OF_A_LISTENER.fullmatch(name) if self.of_listeners else None
        prefix = f"listener.name.{parts['listener']}." if parts else ""
        near = difflib.get_close_matches(name.removeprefix(prefix), self.rows, n=1)
        hint = f"; did you mean '{prefix}{near[0]}'?" if near else ""
        raise ConfigError(f"unknown {self.noun} setting '{name}'{hint}")

    def passes_by(self, name: str) -> bool:
        """Whether this is a setting of Kafka's that is accepted and ignored."""
        if name in self.rows:
            return False
        parts = OF_A_LISTENER.fullmatch(name) if self.of_listeners else None
        if parts is not None:
            setting = parts["setting"]
            # What follows the listener's name may begin with the name of a SASL mechanism.
            for own in (setting, setting.partition(".")[2]):
                if own.startswith(("ssl.", "sasl.")):
                    return _is_listed(own, self.passed_by)
        return _is_listed(name, self.passed_by) and name not in self

    def parse(self, given: Mapping[str, object] | None = None) -> Values:
        """The defaults, overridden by what was given."""
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"{self.noun} settings are a dict of Kafka's names, not {type(given).__name__}")
        values = {row.name: row.default for row in self.rows.values()}
        explicit = set()
        passed_by = {}
        spelt: dict[str, str] = {}
        for name, value in (given or {}).items():
            if not isinstance(name, str):
                raise TypeError(f"the name of a {self.noun} setting is str, not {type(name).__name__}")
            if (other := self.aliases.get(name)) is not None:
                spelt[other], name = name, other
            if self.passes_by(name):
                if value is not None:
                    passed_by[name] = str(value)
                continue
            row = self.row(name)
            if value is None:
                continue  # programs pass None for "not set"
            read = row.read(value)
            if name in explicit and values[name] != read:
                both = ", ".join(one for one in given or () if self.aliases.get(one, one) == name)
                raise ConfigError(f"{both}: two names of one setting with different values; give one of them")
            values[name] = read
            explicit.add(name)
        parsed = Values(self, values, frozenset(explicit), passed_by)
        parsed.spelt = spelt
        return parsed

"""Where a key of a TOML file is written: Python's parser tells values only."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

_TABLE = re.compile(r"\s*\[\[?(?P<name>[^\[\]]+)\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*(?P<name>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_LONG_TEXT = ('"""', "'''")

Path = tuple[str, ...]


def lines_of_keys(text: str) -> dict[Path, int]:
    """Each table and each key with its line, counted from 1.

    >>> lines_of_keys('checkpoint = "c"\\n[kafka]\\nbootstrap.servers = "h:9092"')
    {('checkpoint',): 1, ('kafka',): 2, ('kafka', 'bootstrap', 'servers'): 3}
    """
    found: dict[Path, int] = {}
    table: Path = ()
    for number, line in _lines_outside_long_texts(text):
        if header := _TABLE.match(line):
            table = _parts(header["name"])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault((*table, *_parts(key["name"])), number)
    return found


def nearest_line(lines: dict[Path, int], path: Path) -> int | None:
    """The line of a key, or of the table around it where the key has no line of its own (an inline table)."""
    flat = {_flat(known): line for known, line in lines.items()}
    for length in range(len(path), 0, -1):
        if (line := flat.get(_flat(path[:length]))) is not None:
            return line
    return None


def line_of_error(error: tomllib.TOMLDecodeError) -> int | None:
    """The line that the parser stopped at."""
    found = re.search(r"at line (\d+)", str(error))
    return int(found[1]) if found else None


def _flat(path: Path) -> str:
    """A key with dots may be quoted or not: both are the same setting."""
    return ".".join(path)


def _parts(name: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(name))


def _lines_outside_long_texts(text: str) -> Iterator[tuple[int, str]]:
    """A line within a text of three quotes may look like a key, and is none."""
    closing = ""
    for number, line in enumerate(text.splitlines(), 1):
        if closing:
            if closing in line:
                closing = ""
            continue
        yield number, line
        for quotes in _LONG_TEXT:
            if line.count(quotes) % 2:
                closing = quotes

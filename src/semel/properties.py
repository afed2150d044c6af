r"""Reads Java's properties files by Java's rules, so that a `server.properties` means the same as in Kafka.

A name ends at the first `=`, `:` or white space; `\` at a line's end joins it to the next; `\t`, `\u00e9` and the like
are escapes; `#` and `!` begin comments. As in Java, the last value of a name wins.

>>> read_properties("a=1\nb: 2\nc 3\nd=x,\\\n   y\n# no more")
{'a': '1', 'b': '2', 'c': '3', 'd': 'x,y'}
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLANK = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_NAME = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SIGN = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(text: str) -> dict[str, str]:
    """Every name of a properties file with its value."""
    found = {}
    for line in _logical_lines(text):
        name = _NAME.match(line)
        sign = _SIGN.match(line, name.end() if name else 0)
        if name and sign:
            found[_unescape(name.group())] = _unescape(line[sign.end() :])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """The lines without comments and blank lines; lines joined by a backslash are one."""
    joined: str | None = None
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANK)
        if joined is None:
            if not line or line[0] in "#!":
                continue
            joined = ""
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
            continue
        yield joined + line
        joined = None
    if joined:
        yield joined


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _LETTERS.get(found[2], found[2]), text)

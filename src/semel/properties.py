r"""Reads Java's properties files by Java's rules, so that a `server.properties` means the same as in Kafka.

A name ends at the first `=`, `:` or white space; `\` at a line's end joins it to the next; `\t`, `\u00e9` and the like
are escapes; `#` and `!` begin comments. As in Java, the last value of a name wins, and a `\u` without four hexadecimal
digits is an error (`ValueError`). Not as in Java, so is a line of PEM text: without the backslashes that join them, the
lines of a key would be taken for names, and names are shown. No error shows a value.

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
    """Every name of a properties file with its value. ValueError where Java would refuse the file."""
    found = {}
    for line in _logical_lines(text):
        name = _NAME.match(line)
        sign = _SIGN.match(line, name.end() if name else 0)
        if line.startswith("-----"):
            raise ValueError(
                "a certificate or a key stands where a setting should: is it a properties file? A value of several "
                "lines has a \\ at the end of each but the last"
            )
        if name and sign:
            found[_unescape(name.group(), "a name")] = _unescape(line[sign.end() :], name.group())
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """The lines without comments and blank lines; lines joined by a backslash are one."""
    joined = ""
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANK)
        # A line that was joined to nothing yet may still be blank, or a comment.
        if not joined and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
            continue
        yield joined + line
        joined = ""
    if joined:
        yield joined


def _unescape(text: str, what: str) -> str:
    if "\\" not in text:
        return text
    if any(letter == "u" for _, letter in _ESCAPE.findall(text)):
        raise ValueError(f"{what} has a \\u without four hexadecimal digits; a backslash itself is \\\\")
    # Java's text is UTF-16: two escapes may be one letter.
    return _ESCAPE.sub(_letter, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _letter(escape: re.Match[str]) -> str:
    digits, letter = escape.groups()
    if digits:
        return chr(int(digits, 16))
    return _LETTERS.get(letter, letter)

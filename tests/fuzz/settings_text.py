"""Properties files, JAAS lines and files of users: a second reading of Java's rules, letter by letter, agrees."""

from __future__ import annotations

from semel.broker.security.plain import parse_users, users_of_jaas
from semel.config import BROKER, ConfigError
from semel.properties import read_properties
from semel.security.credentials import parse_jaas
from tests.fuzz.target import Draw, Target, expect

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"


def java_properties(text: str) -> dict[str, str] | None:
    """As `java.util.Properties.load` goes through a file; None where it throws (an escape that is not one).

    It was compared with Java 17 itself. One thing is left out: of a backslash alone at the end Java makes a setting
    without a name.
    """
    lines: list[str] = []
    line: list[str] = []
    skips, is_joined, after_backslash, in_comment, after_return = True, False, False, False, False
    for letter in text:
        if after_return and letter == "\n":
            after_return = False
            continue
        after_return = False
        if in_comment:
            in_comment = letter not in "\r\n"
            continue
        if skips:
            if letter in _BLANK or (not is_joined and letter in "\r\n"):
                continue
            skips = is_joined = False
        if not line and letter in "#!":
            in_comment = skips = True
        elif letter not in "\r\n":
            line.append(letter)
            after_backslash = letter == "\\" and not after_backslash
        elif not line:
            skips = True
        elif after_backslash:
            line.pop()
            skips = is_joined = True
            after_backslash, after_return = False, letter == "\r"
        else:
            lines.append("".join(line))
            line = []
            skips = True
    if line:
        lines.append("".join(line[:-1] if after_backslash else line))
    found: dict[str, str] = {}
    for whole in filter(None, lines):
        key_end, has_sign = 0, False
        while key_end < len(whole) and whole[key_end] not in "=: \t\f":
            key_end += 2 if whole[key_end] == "\\" else 1
        begin = key_end
        while begin < len(whole) and (whole[begin] in _BLANK or (whole[begin] in "=:" and not has_sign)):
            has_sign |= whole[begin] in "=:"
            begin += 1
        name, value = _unescaped(whole[:key_end]), _unescaped(whole[begin:])
        if name is None or value is None:
            return None
        found[name] = value
    return found


def _unescaped(text: str) -> str | None:
    out: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            out.append(text[at])
            at += 1
        elif text[at + 1] != "u":
            out.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
        else:
            digits = text[at + 2 : at + 6]
            if len(digits) < 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                return None
            out.append(chr(int(digits, 16)))
            at += 6
    # Java's strings are UTF-16: two escapes can be one letter.
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def one(data: bytes) -> None:
    draw = Draw(data)
    kind = draw.byte() % 3
    text = draw.rest().decode("utf-8", "replace")
    if kind == 0:
        found, java = None, java_properties(text)
        try:
            found = read_properties(text)
        except ValueError:
            pass
        expect(found == java, f"properties: {found!r:.200}, by Java's rules {java!r:.200}")
        if found is not None:
            try:
                BROKER.parse(found)
            except ConfigError as error:
                str(error).encode()
    elif kind == 1:
        try:
            line = parse_jaas(text)
            expect(line.module and all(line.options), "an option without a name")
            users = users_of_jaas(text, "sasl.jaas.config")
            expect(all(users), "a user without a name")
        except ConfigError as error:
            str(error).encode()
    else:
        try:
            users = parse_users(text.encode(), "a file")
            expect(all(name and ":" not in name and "\n" not in name for name in users), "a user without a name")
        except ConfigError as error:
            str(error).encode()


def seeds() -> list[bytes]:
    properties = [
        b"a=1\nb: 2\nc 3\nd=x,\\\n   y\n# no more\n!also\n\\ e\\:=\\u00e9\\t\r\nlog.segment.bytes=100\n",
        b"listeners=SASL_SSL://:9092\\\r\n,PLAINTEXT://:1\nkey\\=more = value \\\\\n", b"a\\\n", b"x=\\ud83d\\ude00",
        b"super.users=User:alice;User:bob\n\\u0061=b\n  =\n:\n\\", b"a\\\n\n#b=c\n",
    ]
    jaas = [
        b'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret" user_b=\'c\';',
        b'ScramLoginModule required username="a" password="b\\"c" tokenauth=true;',
        b"PlainLoginModule required user_=x;",
    ]
    users = [b"alice:secret\n# no\r\n\nbob:pass:word\r\n", b"alice\n", b"a:b\na:c"]
    return [
        *(b"\0" + text for text in properties),
        *(b"\x01" + text for text in jaas),
        *(b"\x02" + text for text in users),
    ]


TARGET = Target(
    "properties are read as Java reads them; a JAAS line, a users file or a setting is taken or refused in words",
    one,
    seeds,
    max_bytes=512,
)

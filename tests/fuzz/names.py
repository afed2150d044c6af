"""Names of certificates and the rules that map them: any bytes are a name or a ValueError."""

from __future__ import annotations

from functools import cache

from semel.machines.security.distinguished_names import name_text, subject_of
from semel.machines.security.principals import (
    map_name,
    parse_mapping_rules,
    parse_principal,
    parse_principals,
)
from tests.fuzz.target import Draw, Target, expect

#: Short: how long a pattern takes for a long name is up to whoever writes the pattern.
NAMES = ("CN=Al,O=S", "", "CN=a\\,b", "CN=\u00e9")


def one(data: bytes) -> None:
    draw = Draw(data)
    kind = draw.byte() % 4
    if kind < 2:
        try:
            text = (subject_of if kind else name_text)(draw.rest())
        except ValueError:
            return
        expect(text.isprintable() or not text.isascii() or "\0" not in text, "a zero byte in a name")
    elif kind == 2:
        try:
            rules = parse_mapping_rules(draw.rest().decode("utf-8", "replace"))
        except ValueError:
            return
        expect(rules, "no rule at all")
        for name in NAMES:
            try:
                expect(isinstance(map_name(rules, name), str), "a name is no text")
            except ValueError:
                continue
    else:
        text = draw.rest().decode("utf-8", "replace")
        try:
            principal = parse_principal(text)
            expect(str(principal) == text and principal.kind and principal.name, "a principal is another text")
        except ValueError:
            pass
        try:
            expect(all(":" in one for one in parse_principals(text)), "a super user without a type")
        except ValueError:
            pass


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x81, size]) if size < 256 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + length + content


@cache
def _name() -> bytes:
    def pair(number: bytes, text: bytes, tag: int = 0x0C) -> bytes:
        return _der(0x30, _der(0x06, number), _der(tag, text))

    common, organisation, mail = b"\x55\x04\x03", b"\x55\x04\x0a", b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x01"
    return _der(
        0x30,
        _der(0x31, pair(organisation, b" Semel, Inc. #1 ", 0x13)),
        _der(0x31, pair(mail, b"a@b.c", 0x16), pair(b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x01", b"uid+1")),
        _der(0x31, pair(common, 'J\u00f6rg \\ "x"'.encode())),
    )


def seeds() -> list[bytes]:
    name = _name()
    body = _der(
        0x30, _der(0xA0, b"\x02\x01\x02"), _der(0x02, b"\x05"), _der(0x30, b""), _der(0x30, b""), _der(0x30, b""), name
    )
    certificate = _der(0x30, body, _der(0x30, b""), _der(0x03, b"\0" * 8))
    texts = [
        b"DEFAULT", b"RULE:^CN=(.*?),.*$/$1/L,DEFAULT", b"RULE:^CN=(.*)$/$1/U", b"RULE:(a|b)*c{1,3}[^x]/x$0/, DEFAULT",
        rb"RULE:a\/b/\/c$1/", b"RULE:(?P<n>x)(?i:y)\\d+/$2$1/L",
    ]
    principals = [b"User:alice", b"User:CN=a,O=b; Group:x", b"User", b":", b"User:"]
    return [
        b"\0" + name,
        b"\x01" + certificate,
        *(b"\x02" + text for text in texts),
        *(b"\x03" + text for text in principals),
    ]


TARGET = Target(
    "any bytes are the name of a certificate, a mapping rule or a principal, or a ValueError", one, seeds, max_bytes=512
)

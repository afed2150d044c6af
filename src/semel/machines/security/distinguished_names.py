"""What is read of a certificate: its name, and until when it is valid.

The name is text exactly as Java writes it (`X500Principal.getName`, RFC 2253). Access rules and
`ssl.principal.mapping.rules` are written against that text, so every escape and every order of it counts. The
certificate was verified before: here it is only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

#: The attributes that have a name in RFC 2253. All others are written as numbers.
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
#: Types of text: UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString.
_TEXTS = (0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E)
_ESCAPED = ',=+<>#;"\\'
_SPACES = " \r"
_EXPLICIT_VERSION = 0xA0
_UTC_TIME = 0x17


class _Value(NamedTuple):
    """One DER value: its tag, all its bytes, and its content."""

    tag: int
    whole: bytes
    content: bytes


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER form. ValueError if it cannot be read."""
    return name_text(_field(certificate, 4).whole)


def valid_until(certificate: bytes) -> datetime:
    """When a certificate in DER form expires. ValueError if it cannot be read."""
    try:
        _, until = _values(_field(certificate, 3).content)
        text = until.content.decode("ascii")
        # UTCTime has a year of two digits, which RFC 5280 puts between 1950 and 2049. Its time is always UTC.
        if until.tag == _UTC_TIME:
            text = ("19" if text[:2] >= "50" else "20") + text
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except IndexError:
        raise ValueError("the certificate cannot be read") from None


def _field(certificate: bytes, number: int) -> _Value:
    """One field of the signed part: serial number, algorithm, issuer, validity, subject."""
    try:
        signed_part = next(_values(next(_values(certificate)).content))
        fields = list(_values(signed_part.content))
        if fields[0].tag == _EXPLICIT_VERSION:
            del fields[0]
        return fields[number]
    except (IndexError, StopIteration):
        raise ValueError("the certificate cannot be read") from None


def name_text(name: bytes) -> str:
    """A name in DER form as RFC 2253 text: the last part first."""
    try:
        parts = [_part_text(part.content) for part in _values(next(_values(name)).content)]
    except (IndexError, StopIteration):
        raise ValueError("the name cannot be read") from None
    return ",".join(reversed(parts))


def _values(data: bytes) -> Iterator[_Value]:
    position = 0
    while position < len(data):
        start, tag, size = position, data[position], data[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[position : position + count], "big")
            position += count
        end = position + size
        if end > len(data):
            raise IndexError
        yield _Value(tag, data[start:end], data[position:end])
        position = end


def _part_text(pairs: bytes) -> str:
    texts = []
    for pair in _values(pairs):
        kind, value = _values(pair.content)
        number = _number_text(kind.content)
        keyword = _KEYWORDS.get(number)
        if keyword is None or value.tag not in _TEXTS:
            texts.append(f"{keyword or number}=#{value.whole.hex()}")
        else:
            texts.append(f"{keyword}={_escaped(value.content.decode('utf-8', 'replace'))}")
    return "+".join(texts)


def _number_text(content: bytes) -> str:
    """An object identifier with dots."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(text: str) -> str:
    escaped = "".join("\\" + one if one in _ESCAPED else "\\00" if one == "\0" else one for one in text)
    inner = escaped.strip(_SPACES)
    if not inner:
        return "".join("\\" + one for one in escaped)
    before = len(escaped) - len(escaped.lstrip(_SPACES))
    after = before + len(inner)
    return "".join("\\" + one for one in escaped[:before]) + inner + "".join("\\" + one for one in escaped[after:])

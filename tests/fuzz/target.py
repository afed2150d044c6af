"""What a fuzzing target is, and how it reads its input.

A target is a function of bytes. It catches the exceptions that the code under test documents. Everything else is a
finding: another exception, a `Finding` (a model or a twin disagrees), a run that does not end, or memory beyond the
bound.

The same function runs under atheris (`make fuzz`) and under pytest (`test_fuzz.py`), so it may not need atheris. That
is why `Draw` exists beside atheris's FuzzedDataProvider.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: What fuzzers like to write over numbers and lengths.
INTERESTING = (
    b"\0", b"\x01", b"\x7f", b"\x80", b"\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff",
    b"\x80\0\0\0", b"\xff\xff\xff\xff\x0f", b"\x7f" + b"\xff" * 7, b"\x80" + b"\0" * 7, b"9" * 20, b"\n", b",", b"=",
)


class Finding(AssertionError):
    """The code under test did something that it may not do."""


def expect(holds: object, what: str) -> None:
    """A property of the code under test. Not `assert`: a finding says in words what is broken."""
    if not holds:
        raise Finding(what)


class Draw:
    """Takes an input apart, from its front. When it is used up, everything is zero."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Whether there is anything left."""
        return self._at < len(self._data)

    def byte(self) -> int:
        at = self._at
        if at >= len(self._data):
            return 0
        self._at = at + 1
        return self._data[at]

    def flag(self) -> bool:
        return bool(self.byte() & 1)

    def number(self, size_bytes: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size_bytes), "big", signed=signed)

    def pick(self, choices: Sequence[T]) -> T:
        """One of at most 256 (by one byte) or 65,536 choices."""
        return choices[(self.byte() if len(choices) <= 256 else self.number(2)) % len(choices)]

    def take(self, size_bytes: int) -> bytes:
        at = self._at
        self._at = min(at + size_bytes, len(self._data))
        return self._data[at : self._at]

    def short(self, limit: int = 255) -> bytes:
        """Bytes with their length, of one byte, before them."""
        return self.take(min(self.byte(), limit))

    def text(self, limit: int = 255) -> str:
        return self.short(limit).decode("utf-8", "replace")

    def rest(self) -> bytes:
        return self.take(len(self._data))


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to fuzz."""

    #: What it holds, in one sentence.
    about: str
    one: Callable[[bytes], None]
    #: Valid inputs, built by code.
    seeds: Callable[[], list[bytes]]
    max_bytes: int = 4096
    #: Called once under atheris, before the first input: instruments code that no import brings.
    prepare: Callable[[Callable[..., object]], None] | None = None


def mutations(seeds: Sequence[bytes], count: int, seed: int, max_bytes: int) -> Iterator[bytes]:
    """The same inputs for the same `seed`: seeds changed in one to four places, and noise."""
    dice = random.Random(seed)
    for number in range(count):
        data = bytearray(dice.randbytes(dice.randrange(64)) if number % 16 == 0 else dice.choice(seeds))
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data) + 1)
            kind = dice.randrange(7)
            if kind == 0 and data:
                data[at % len(data)] ^= 1 << dice.randrange(8)
            elif kind == 1 and data:
                data[at % len(data)] = dice.randrange(256)
            elif kind == 2:
                piece = dice.choice(INTERESTING)
                data[at : at + len(piece)] = piece
            elif kind == 3:
                data[at:at] = dice.randbytes(dice.randint(1, 8))
            elif kind == 4:
                del data[at : at + dice.randint(1, 16)]
            elif kind == 5:
                other = dice.choice(seeds)
                begin = dice.randrange(len(other) + 1)
                data[at:at] = other[begin : begin + dice.randint(1, 32)]
            else:
                del data[at:]
        yield bytes(data[:max_bytes])

"""The ledger of a pipeline as a picture: one bar per transaction over the source's offsets.

Written as PNG with Python's own zlib, and as text for a terminal: nothing has to be installed for it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from semel.machines.pipeline.ledger import ABORTED, COMMITTED, Ledger
from semel.machines.values import TopicPartition

#: Each letter as five columns of seven dots, the lowest bit at the top.
_LETTERS = " -./0123456789:ABCDEFGHIJKLMNOPQRSTUVWXYZ_,'?"
_COLUMNS = bytes.fromhex(
    "0000000000 0808080808 0060600000 2010080402 3e5149453e 00427f4000 4261514946 2141454b31 1814127f10 2745454539"
    "3c4a494930 0171090503 3649494936 064949291e 0036360000 7e1111117e 7f49494936 3e41414122 7f4141221c 7f49494941"
    "7f09090901 3e4149497a 7f0808087f 00417f4100 2040413f01 7f08142241 7f40404040 7f020c027f 7f0408107f 3e4141413e"
    "7f09090906 3e4151215e 7f09192946 4649494931 01017f0101 3f4040403f 1f2040201f 3f4038403f 6314081463 0708700807"
    "6151494543 4040404040 0050300000 0000070000 0201510906"
)
_FONT = {letter: _COLUMNS[5 * number : 5 * number + 5] for number, letter in enumerate(_LETTERS)}

_WHITE, _INK, _GRID = (255, 255, 255), (40, 44, 52), (226, 229, 234)
_COLOURS = {COMMITTED: (46, 139, 87), ABORTED: (205, 70, 60)}
_OPEN = (222, 165, 40)
_WIDTH, _ROW, _LEFT, _RIGHT, _TOP, _BOTTOM = 1040, 26, 150, 270, 64, 50
#: No more bars than a person can look at: the last ones.
_MOST = 60

_SIGNS = {COMMITTED: "█", ABORTED: "░"}


@dataclass(frozen=True, slots=True)
class Bar:
    """One transaction: its name, where it lies in the source, and what it wrote."""

    name: str
    begin: int
    end: int
    outcome: str
    rows: int | None


def bars_of(ledger: Ledger) -> list[Bar]:
    """A bar for each transaction. Offsets are added up over the partitions of the source.

    A transaction that was aborted before it had offsets is drawn where the next one begins, as long as its rows are.
    """
    bars: list[Bar] = []
    ends: dict[TopicPartition, int] = {}
    at = 0
    for entry in ledger.entries:
        rows = entry.rows_said if entry.rows_said is not None else entry.rows_found
        after = {**ends, **{place: end for place, (_, end) in entry.ranges.items()}}
        end = sum(after.values()) if entry.ranges else at + (entry.rows_found or 0)
        name = "BATCH ?" if entry.batch_id is None else f"BATCH {entry.batch_id}"
        bars.append(Bar(name, at, max(end, at), entry.outcome, rows))
        if entry.outcome == COMMITTED and entry.ranges:
            ends, at = after, sum(after.values())
    return bars[-_MOST:]


def as_text(bars: list[Bar], width: int = 48) -> list[str]:
    """The bars as lines for a terminal."""
    longest = max((bar.end for bar in bars), default=0) or 1
    lines = []
    for bar in bars:
        begin, end = bar.begin * width // longest, max(bar.end * width // longest, bar.begin * width // longest + 1)
        drawn = " " * begin + _SIGNS.get(bar.outcome, "▒") * (end - begin)
        rows = "" if bar.rows is None else f"{bar.rows} rows"
        lines.append(f"  {bar.name.lower():<10} |{drawn[:width]:<{width}}| {bar.outcome:<9} {rows}".rstrip())
    return lines


def as_png(bars: list[Bar], title: str, verdict: str) -> bytes:
    """The bars as a PNG file."""
    canvas = _Canvas(_WIDTH, _TOP + _ROW * max(1, len(bars)) + _BOTTOM)
    longest = max((bar.end for bar in bars), default=0) or 1
    span = _WIDTH - _LEFT - _RIGHT
    canvas.write(16, 16, title.upper(), 2, _INK)
    bottom = _TOP + _ROW * len(bars)
    for part in range(5):
        x = _LEFT + span * part // 4
        canvas.fill(x, _TOP - 6, 1, bottom - _TOP + 10, _GRID)
        canvas.write(x - 8, bottom + 8, str(longest * part // 4), 1, _INK)
    for number, bar in enumerate(bars):
        y = _TOP + number * _ROW
        x = _LEFT + span * bar.begin // longest
        length = max(3, span * (bar.end - bar.begin) // longest)
        colour = _COLOURS.get(bar.outcome, _OPEN)
        canvas.write(16, y + 4, bar.name, 2, _INK)
        canvas.fill(x, y + 2, length, _ROW - 8, colour)
        if bar.outcome != COMMITTED:
            canvas.hatch(x, y + 2, length, _ROW - 8)
        rows = "" if bar.rows is None else f" {bar.rows} ROWS"
        canvas.write(_WIDTH - _RIGHT + 12, y + 4, f"{bar.outcome.upper()}{rows}", 2, colour)
    canvas.write(_WIDTH - _RIGHT + 22, bottom + 8, "OFFSETS OF THE SOURCE", 1, _INK)
    canvas.write(16, bottom + 28, verdict.upper(), 2, _INK)
    return canvas.png()


class _Canvas:
    """Rows of pixels."""

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._rows = [bytearray(bytes(_WHITE) * width) for _ in range(height)]

    def fill(self, x: int, y: int, width: int, height: int, colour: tuple[int, int, int]) -> None:
        x, right = max(0, x), min(self._width, x + width)
        for row in self._rows[max(0, y) : min(self._height, y + height)]:
            row[3 * x : 3 * right] = bytes(colour) * max(0, right - x)

    def hatch(self, x: int, y: int, width: int, height: int) -> None:
        """White strokes across: what was not kept."""
        for down in range(height):
            for across in range(width):
                if (across + down) % 8 < 3:
                    self.fill(x + across, y + down, 1, 1, _WHITE)

    def write(self, x: int, y: int, text: str, scale: int, colour: tuple[int, int, int]) -> None:
        for letter in text:
            for column, dots in enumerate(_FONT.get(letter, _FONT["-"])):
                for row in range(7):
                    if dots >> row & 1:
                        self.fill(x + column * scale, y + row * scale, scale, scale, colour)
            x += 6 * scale

    def png(self) -> bytes:
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self._rows), 9)
        parts = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in parts
        )

"""What happened in a world, as one number: two runs with the same number did the same things at the same times."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from zlib import crc32

_TIME = Struct("<d")
_TIME_AND_PLACE = Struct("<dII")


class Trace:
    """Notes events into a running checksum, and keeps the last ones to be read by a person."""

    def __init__(self, time: Callable[[], float], kept: int = 2_000) -> None:
        self._time = time
        self._sum = 0
        self.events = 0
        self._last: deque[tuple[float, str, str]] = deque(maxlen=kept)

    def note(self, kind: str, what: str = "", data: bytes = b"") -> None:
        """Note one event. Of `data` only the checksum is kept."""
        now = self._time()
        self.events += 1
        self._sum = crc32(data, crc32(what.encode(), crc32(kind.encode(), crc32(_TIME.pack(now), self._sum))))
        self._last.append((now, kind, what))

    def note_data(self, now: float, what: str, place: int, data: bytes) -> None:
        """Note data that arrived on a connection: most events are such. `place` is a number for `what`."""
        self.events += 1
        self._sum = crc32(data, crc32(_TIME_AND_PLACE.pack(now, place, self._sum)))
        self._last.append((now, "data", what))

    @property
    def hash(self) -> str:
        return f"{self._sum:08x}-{self.events}"

    def last(self, count: int = 40) -> list[str]:
        """The last events, as lines."""
        return [f"{time:12.6f}  {kind:<10} {what}" for time, kind, what in list(self._last)[-count:]]

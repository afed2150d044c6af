"""How long requests take, by API: a histogram, kept only while somebody can scrape it (see `broker.meter`)."""

from __future__ import annotations

from bisect import bisect_left

#: Upper bounds of the histogram. A longer time is counted beyond the last.
BOUNDS_MS = (0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0)


class RequestTimes:
    """The times of one API's requests since the start."""

    __slots__ = ("counts", "longest_ms", "sum_ms")

    def __init__(self) -> None:
        #: One for each of `BOUNDS_MS`, and one for everything beyond.
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0
        self.longest_ms = 0.0

    def add(self, took_ms: float) -> None:
        """Count one request."""
        self.counts[bisect_left(BOUNDS_MS, took_ms)] += 1
        self.sum_ms += took_ms
        if took_ms > self.longest_ms:
            self.longest_ms = took_ms

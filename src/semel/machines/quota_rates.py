"""How much of something happened lately, and how long to wait until it is as much as is allowed.

Guarantees:

- `SampledRate` is Kafka's: the last `samples` windows count, and the time they span is never taken for less than all
  whole windows but one, so that a burst after a silence is judged by its average.
- `TokenBucket` is Kafka's (KIP-599): a bucket holds what `samples` windows may spend and fills at the allowed rate. It
  may be overdrawn once, by any amount; the debt is then waited for.
- Nobody is told to wait for longer than an answer can say, however small the quota.
- Neither remembers anything once it `is_idle`: it can be thrown away and made again without anybody noticing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: The longest wait: `throttle_time_ms` is a 32-bit number.
MOST_WAIT_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Windows:
    """How far back a rate looks."""

    samples: int = 11
    size_ms: int = 1000

    @property
    def whole_s(self) -> float:
        """The seconds that a quota may be spent in at once: every window but the one that is being filled."""
        return (self.samples - 1) * self.size_ms / 1000


class SampledRate:
    """Something per second, over the last windows."""

    __slots__ = ("_samples", "_windows", "total")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        #: The beginning of each window and what happened in it, oldest first.
        self._samples: deque[list[float]] = deque()
        self.total = 0.0

    def record(self, amount: float, now_ms: int) -> None:
        """Count `amount`; a negative one takes back what was counted at the same time."""
        self._forget(now_ms)
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._windows.size_ms:
            samples.append([now_ms, 0.0])
        samples[-1][1] += amount
        self.total += amount

    def wait_ms(self, allowed_per_s: float, now_ms: int) -> int:
        """How long nothing may happen for the rate to be what is allowed; 0 while it is."""
        span_ms = self._span_ms(now_ms)
        rate = self.total * 1000 / span_ms
        if rate <= allowed_per_s:
            return 0
        return round(min((rate - allowed_per_s) / allowed_per_s * span_ms, MOST_WAIT_MS))

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing of the last windows is left."""
        self._forget(now_ms)
        return not self._samples

    def _span_ms(self, now_ms: int) -> int:
        self._forget(now_ms)
        windows = self._windows
        elapsed_ms = max(0, now_ms - int(self._samples[0][0])) if self._samples else 0
        missing = windows.samples - 1 - elapsed_ms // windows.size_ms
        if missing > 0:
            elapsed_ms += missing * windows.size_ms
        return max(1, elapsed_ms)

    def _forget(self, now_ms: int) -> None:
        samples, oldest_ms = self._samples, now_ms - self._windows.samples * self._windows.size_ms
        while samples and samples[0][0] <= oldest_ms:
            self.total -= samples.popleft()[1]
        if not samples:
            self.total = 0.0


class TokenBucket:
    """What may be spent, filled again at the allowed rate."""

    __slots__ = ("_allowed_per_s", "_at_ms", "_most", "tokens")

    def __init__(self, windows: Windows, allowed_per_s: float, now_ms: int) -> None:
        self._allowed_per_s = allowed_per_s
        self._most = allowed_per_s * windows.samples * windows.size_ms / 1000
        self._at_ms = now_ms
        self.tokens = self._most

    def record(self, amount: float, now_ms: int) -> None:
        """Spend `amount`."""
        self._fill(now_ms)
        self.tokens = min(self._most, self.tokens - amount)

    def wait_ms(self, now_ms: int) -> int:
        """How long it takes until the debt is paid; 0 while there is none."""
        self._fill(now_ms)
        return round(min(-self.tokens / self._allowed_per_s * 1000, MOST_WAIT_MS)) if self.tokens < 0 else 0

    def is_idle(self, now_ms: int) -> bool:
        """Whether the bucket is full."""
        self._fill(now_ms)
        return self.tokens >= self._most

    def _fill(self, now_ms: int) -> None:
        passed_ms, self._at_ms = max(0, now_ms - self._at_ms), max(now_ms, self._at_ms)
        self.tokens = min(self._most, self.tokens + self._allowed_per_s * passed_ms / 1000)

"""Checks large batches on threads, so that they do not block the event loop.

Guarantees:

- The bytes that were checked are the bytes that are written: the connection takes no further frame meanwhile.
- All batches of one request together decompress to `DECOMPRESSED_MAX_BYTES`, or to `DECOMPRESSED_RATIO` times the
  request's size, at most.
- At most `THREADS` batches are checked at a time, one of each request. So no request waits for all batches of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from semel.errors import ErrorCode, Refused
from semel.log.admission import Admission
from semel.records.batch import Batch, Meter
from semel.records.compression import DecompressionLimitExceeded
from semel.records.layout import DECOMPRESSED_LIMIT

#: The largest decompressed batch that any topic takes.
DECOMPRESSED_MAX_BYTES = DECOMPRESSED_LIMIT
#: Ordinary data rarely compresses better than this.
DECOMPRESSED_RATIO = 64
THREADS = 2


class Share:
    """How much one request may have decompressed, and how much of that is left."""

    __slots__ = ("left_bytes",)

    def __init__(self, request_bytes: int) -> None:
        self.left_bytes = max(DECOMPRESSED_MAX_BYTES, DECOMPRESSED_RATIO * request_bytes)


class RecordChecks:
    """The threads that check batches."""

    def __init__(self, threads: Callable[[int, str], Executor]) -> None:
        self._new_threads = threads
        self._threads: Executor | None = None
        #: How many batches were checked here, since the start.
        self.batches = 0

    async def prepare(
        self, admission: Admission, data: bytes | bytearray | memoryview, now_ms: int, share: Share
    ) -> Batch:
        """Check a batch. Returns it as it is to be written, or raises `Refused`."""
        if share.left_bytes <= 0:
            # A request may have very many such batches: others are served in between.
            await asyncio.sleep(0)
            raise _used_up()
        if self._threads is None:
            self._threads = self._new_threads(THREADS, "semel-records")
        self.batches += 1
        limit = min(admission.decompressed_limit, share.left_bytes)
        meter = Meter()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, admission.prepare, data, now_ms, limit, meter
            )
        except DecompressionLimitExceeded:
            meter.decompressed_bytes = limit
            if limit < admission.decompressed_limit:
                raise _used_up() from None
            raise
        finally:
            share.left_bytes -= meter.decompressed_bytes

    def close(self) -> None:
        """Start no more checks. Those that run end soon."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _used_up() -> Refused:
    """A retriable error: the client sends the rest again, in a request with its own share."""
    return Refused(
        ErrorCode.REQUEST_TIMED_OUT,
        f"the batches before it in this request decompress to {DECOMPRESSED_MAX_BYTES} bytes or {DECOMPRESSED_RATIO} "
        "times its size; send this one again in a request of its own",
    )

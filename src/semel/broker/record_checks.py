"""Looks into batches that would keep the one thread from everybody else, on threads of their own.

Guarantees:

- Whoever waits for a batch keeps its bytes as they are: a connection takes no further frame meanwhile. So what was
  checked is what is written.
- One request has at most its own share decompressed: `DECOMPRESSED_MAX_BYTES`, or `DECOMPRESSED_RATIO` times its own
  size.
- At most `THREADS` batches are decompressed at a time, and each request has one of them, so that nobody waits for all
  of another's.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from semel.errors import ErrorCode, Refused
from semel.log.admission import Admission
from semel.records.batch import Batch, Meter
from semel.records.compression import DecompressionLimitExceeded
from semel.records.layout import DECOMPRESSED_LIMIT

#: No topic takes a batch that decompresses to more.
DECOMPRESSED_MAX_BYTES = DECOMPRESSED_LIMIT
#: Honest data rarely gets as small.
DECOMPRESSED_RATIO = 64
THREADS = 2


class Share:
    """How much one request may have decompressed, and how much of that is left."""

    __slots__ = ("left_bytes",)

    def __init__(self, request_bytes: int) -> None:
        self.left_bytes = max(DECOMPRESSED_MAX_BYTES, DECOMPRESSED_RATIO * request_bytes)


class RecordChecks:
    """The threads, and what they have done."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        #: How many batches were looked into here, since the start.
        self.batches = 0

    async def prepare(
        self, admission: Admission, data: bytes | bytearray | memoryview, now_ms: int, share: Share
    ) -> Batch:
        """The batch as it is to be written, or `Refused`."""
        if share.left_bytes <= 0:
            # Very many may be refused like this: others are served between them.
            await asyncio.sleep(0)
            raise _used_up()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="semel-records")
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
        """Begin nothing more; what runs ends by itself, and soon."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _used_up() -> Refused:
    """Retriable: the rest comes again in a request with a share of its own."""
    return Refused(
        ErrorCode.REQUEST_TIMED_OUT,
        f"the batches before it in this request decompress to {DECOMPRESSED_MAX_BYTES} bytes or {DECOMPRESSED_RATIO} "
        "times its size; send this one again in a request of its own",
    )

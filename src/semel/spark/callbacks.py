"""The JVM's calls into Python: Spark runs foreachBatch by calling a socket of this process.

Guarantees: a query starts only if that call can arrive, and every call is answered. Spark waits for the answer without
a limit, so otherwise the query would hang, and so would `query.stop()`.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any


class CallbacksImpossible(RuntimeError):
    """The JVM cannot call this process. The text says what to change."""


class CallbackBroken(RuntimeError):
    """A micro-batch ended with something that is not an ordinary error, such as SystemExit. The cause is attached."""


def require_callbacks(spark: Any) -> None:
    """Start the listener for the JVM's calls, or raise `CallbacksImpossible`.

    py4j listens with select(), which cannot use a file descriptor above 1023. In a process with that many files open,
    its thread dies right after it has bound the port: the JVM connects, and waits for ever.
    """
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    if not _is_listening(gateway._callback_server):
        # It may have died long ago, and descriptors may be free again. Calls that wait for the old one get an error.
        gateway._callback_server.server_socket.close()
        gateway._callback_server = None
        ensure_callback_server_started(gateway)
    server = gateway._callback_server
    if not _is_listening(server):
        descriptor = server.server_socket.fileno()
        server.server_socket.close()
        gateway._callback_server = None
        raise CallbacksImpossible(
            f"Spark cannot call this process: its listener got file descriptor {descriptor}, and py4j cannot use one "
            f"above 1023. {_open_files()} files are open here: start the pipeline before opening that many, or close "
            "what is not needed, or run the pipeline in a process of its own."
        )


def _is_listening(server: Any) -> bool:
    try:
        select.select([server.server_socket], [], [], 0)
    except ValueError:  # above select's limit, or closed
        return False
    return bool(server.thread.is_alive())


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 1024


class StoppedBetweenBatches(Exception):
    """The query was to stop after the running micro-batch. The next one was not begun."""


class BatchCallback:
    """What Spark calls for each micro-batch. Every way the function can end becomes an answer.

    py4j answers only for an Exception: a SystemExit, or an InvariantViolation, would end the thread and leave the JVM
    waiting. `failure` keeps the error, because Spark hands it on only as text within a Java exception.
    """

    def __init__(self, function: Callable[[Any, int], None]) -> None:
        self._function = function
        self.failure: Exception | None = None
        #: Set to let no further micro-batch begin.
        self.stopping = threading.Event()

    @property
    def has_stopped(self) -> bool:
        """Whether a micro-batch was held back because the query was to stop."""
        return isinstance(self.failure, StoppedBetweenBatches)

    def __call__(self, frame: Any, batch_id: int) -> None:
        if self.stopping.is_set():
            self.failure = StoppedBetweenBatches(f"batch {batch_id} was not begun: the query was told to stop")
            raise self.failure
        try:
            self._function(frame, batch_id)
        except Exception as error:
            self.failure = error
            raise
        except BaseException as error:
            self.failure = CallbackBroken(f"batch {batch_id} was ended by {type(error).__name__}: {error}")
            raise self.failure from error

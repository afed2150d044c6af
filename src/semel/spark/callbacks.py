"""The JVM's way back into Python: foreachBatch is a call from Spark's stream thread to a socket of this process.

Guarantees: a query is started only if that call can arrive, and every call that arrives is answered. Spark waits for
the answer without a limit, so where either fails it would hang, and so would `query.stop()`.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any


class CallbacksImpossible(RuntimeError):
    """The JVM could not call this process back; the text says what to change."""


class CallbackBroken(RuntimeError):
    """Something that is no ordinary error ended a micro-batch, such as SystemExit; the cause is attached."""


def require_callbacks(spark: Any) -> None:
    """Start listening for the JVM's calls, or say why that cannot work.

    py4j listens with select(), which takes no descriptor from 1024 on. In a process with that many files open its
    thread dies at once, after it has bound the port: the JVM still connects, and waits for ever.
    """
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    if not _is_listening(gateway._callback_server):
        # Perhaps it died long ago, and there is room again. Whoever waits for the old one gets an error instead.
        gateway._callback_server.server_socket.close()
        gateway._callback_server = None
        ensure_callback_server_started(gateway)
    server = gateway._callback_server
    if not _is_listening(server):
        descriptor = server.server_socket.fileno()
        server.server_socket.close()
        gateway._callback_server = None
        raise CallbacksImpossible(
            f"Spark could not call this process back: its listener got file descriptor {descriptor}, and py4j cannot "
            f"use one from 1024 on. {_open_files()} files are open here: start the pipeline before opening that many, "
            "or close what is not needed, or run the pipeline in a process of its own."
        )


def _is_listening(server: Any) -> bool:
    try:
        select.select([server.server_socket], [], [], 0)
    except ValueError:  # out of select's range, or closed
        return False
    return bool(server.thread.is_alive())


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 1024


def callback_of(function: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """The function with every way it can end turned into an answer.

    py4j answers for an Exception only: a SystemExit, or an error that is deliberately no Exception, would end the
    thread and leave the JVM waiting.
    """

    def call(frame: Any, batch_id: int) -> None:
        try:
            function(frame, batch_id)
        except Exception:
            raise
        except BaseException as error:
            raise CallbackBroken(f"batch {batch_id} was ended by {type(error).__name__}: {error}") from error

    return call

"""How a task claims a partition: a question to the driver over a socket.

The rules are in `machines/pipeline/claims.py`. Here are the socket, the secret that keeps strangers out, and the lock:
many tasks ask at once.

A task says with each question whether its record loops are compiled; the driver warns once if they are not.

A task that meets a row which can never be written reports it here too. Spark would wrap the error in stack traces, and
the driver could not tell such a row from a broken connection.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, cast

from semel.machines.pipeline.claims import ClaimBook, ClaimRefused, Epoch, RowRefused
from semel.records import _select

log = logging.getLogger("semel.spark")

_ANSWER_TIMEOUT_S = 60.0
_LONGEST_COMPLAINT = 4000


@dataclass(frozen=True, slots=True)
class ClaimDesk:
    """The driver's address, and the secret that proves that a task belongs to this query. Travels to the tasks."""

    host: str
    port: int
    secret: str

    def claim(self, epoch: Epoch, topic: str, partition: int) -> None:
        """Become the only writer of a partition in this epoch, or raise `ClaimRefused`."""
        refusal = self._ask({"epoch": list(epoch), "topic": topic, "partition": partition})
        if refusal is None:
            raise ClaimRefused(f"the driver at {self.host}:{self.port} gave no answer about {topic}-{partition}")
        if refusal:
            raise ClaimRefused(refusal)

    def complain(self, epoch: Epoch, why: str) -> None:
        """Tell the driver that this micro-batch can never be written, and why."""
        self._ask({"epoch": list(epoch), "mistake": why[:_LONGEST_COMPLAINT]})

    def _ask(self, question: dict[str, object]) -> str | None:
        """The driver's refusal, or an empty string for a yes; None if the connection was closed without an answer."""
        question = {"secret": self.secret, "compiled": _select.COMPILED, **question}
        with socket.create_connection((self.host, self.port), timeout=_ANSWER_TIMEOUT_S) as connection:
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline(65536)
        return str(json.loads(line)["refused"]) if line else None


def refuse_row(desk: ClaimDesk, epoch: Epoch, why: str) -> NoReturn:
    """Fail the task because of a row that can never be written, and tell the driver not to try again."""
    with contextlib.suppress(OSError):  # then the driver treats it as any other failure, and tries again
        desk.complain(epoch, why)
    raise RowRefused(why)


class ClaimServer:
    """Answers claims on the driver while a query runs. Listens on `bind`; tasks connect to `host`. Port 0: any.

    `on_claim` is called for each granted claim, before the task gets its answer: under transaction protocol V1 the
    driver adds the partition to the transaction there.
    """

    def __init__(
        self,
        host: str,
        on_claim: Callable[[str, int], None] | None = None,
        bind: str | None = None,
        port: int = 0,
    ) -> None:
        self._book = ClaimBook()
        self._book_lock = threading.Lock()
        self._on_claim = on_claim
        self._adding = threading.Lock()
        self._has_warned = False
        secret = secrets.token_hex(16)
        answer = self._answer

        class Handler(socketserver.StreamRequestHandler):
            timeout = _ANSWER_TIMEOUT_S

            def handle(self) -> None:
                line = self.rfile.readline(65536)
                if line:
                    refused = answer(line, str(self.client_address[0]))
                    self.wfile.write(json.dumps({"refused": refused}).encode() + b"\n")

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server((bind or host, port), Handler)
        port = cast("tuple[str, int]", self._server.server_address)[1]
        self.desk = ClaimDesk(host, port, secret)
        self._thread = threading.Thread(target=self._server.serve_forever, name="semel-claims", daemon=True)
        self._thread.start()

    def begin_epoch(self, epoch: Epoch) -> None:
        """Grant claims of this epoch, and of no other."""
        with self._book_lock:
            self._book.open(epoch)

    def end_epoch(self) -> None:
        """Grant no more claims."""
        with self._book_lock:
            self._book.close()

    @property
    def mistake(self) -> str:
        """Why the last micro-batch can never be written; empty if no task complained."""
        with self._book_lock:
            return self._book.mistake

    @property
    def claimed(self) -> frozenset[tuple[str, int]]:
        """The partitions claimed in this epoch."""
        with self._book_lock:
            return self._book.claimed

    def _answer(self, line: bytes, asked_by: str) -> str:
        try:
            question = json.loads(line)
            secret, (producer_id, producer_epoch, write_number) = question["secret"], question["epoch"]
            mistake = question.get("mistake")
            topic, partition = (question["topic"], question["partition"]) if mistake is None else ("", -1)
        except (ValueError, KeyError, TypeError, AttributeError):
            return "not a claim"
        if not hmac.compare_digest(str(secret), self.desk.secret):
            return "this claim does not come from a task of this query"
        epoch = (producer_id, producer_epoch, write_number)
        if question.get("compiled") is False:
            self._warn_of_slow_loops(asked_by)
        with self._book_lock:
            if mistake is not None:
                self._book.complain(epoch, str(mistake))
                return ""
            refusal = self._book.refusal(epoch, topic, partition)
        if not refusal and self._on_claim is not None:
            with self._adding:
                try:
                    self._on_claim(topic, partition)
                except Exception as error:  # the task must get an answer whatever went wrong, instead of waiting
                    return f"{topic}-{partition} could not join the transaction: {error}"
        return refusal

    def _warn_of_slow_loops(self, host: str) -> None:
        """Once for a query: it is the same for every task of an executor, and says nothing new the second time."""
        with self._book_lock:
            if self._has_warned:
                return
            self._has_warned = True
        log.warning(
            "the executor at %s runs the record loops in plain Python, which is several times slower: install Semel's "
            "wheel there (--archives), not only its sources (--py-files); see docs/spark-cluster.md",
            host,
        )

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> ClaimServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

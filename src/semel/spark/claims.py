"""The claim guard: each output partition has one writing task per epoch, and the driver is the judge.

Broker deduplication is no safe retry for a task: a rerun may bring other rows, or the same rows in another order,
under the same sequences, and the broker would drop them as repeats. Spark's attempt number does not help either, as
it starts again at zero when a stage is resubmitted. So before its first produce a task claims the partition at the
driver. A second claim is refused, the job fails, and the whole micro-batch runs again under a new epoch.

A task that meets a row which cannot be written, however often it is tried, says so here too: Spark would hand the
driver a page of stack traces, and the driver could not tell such a row from a broken connection.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, cast

_ANSWER_TIMEOUT_S = 60.0
_LONGEST_COMPLAINT = 4000


class ClaimRefused(Exception):
    """Another task of this epoch already writes the partition; the micro-batch must run again under a new epoch."""


class RowRefused(ValueError):
    """A row that cannot be written as it is: the text says which, and what to change. Trying again does not help."""


@dataclass(frozen=True, slots=True)
class ClaimDesk:
    """Where a task finds the judge, and the word that proves it belongs to this query."""

    host: str
    port: int
    secret: str

    def claim(self, epoch: tuple[int, int], topic: str, partition: int) -> None:
        """Become the sole writer of a partition in this epoch, or be refused."""
        refusal = self._ask({"epoch": list(epoch), "topic": topic, "partition": partition})
        if refusal is None:
            raise ClaimRefused(f"the driver at {self.host}:{self.port} gave no answer about {topic}-{partition}")
        if refusal:
            raise ClaimRefused(refusal)

    def complain(self, epoch: tuple[int, int], why: str) -> None:
        """Tell the driver that this micro-batch cannot be written, and why."""
        self._ask({"epoch": list(epoch), "mistake": why[:_LONGEST_COMPLAINT]})

    def _ask(self, question: dict[str, object]) -> str | None:
        """The driver's refusal, empty for a yes; None where it hung up."""
        question = {"secret": self.secret, **question}
        with socket.create_connection((self.host, self.port), timeout=_ANSWER_TIMEOUT_S) as connection:
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline(65536)
        return str(json.loads(line)["refused"]) if line else None


def refuse_row(desk: ClaimDesk, epoch: tuple[int, int], why: str) -> NoReturn:
    """End a task over a row that cannot be written, and let the driver know that another try is of no use."""
    with contextlib.suppress(OSError):  # then the driver takes it for any other failure, and tries again
        desk.complain(epoch, why)
    raise RowRefused(why)


class ClaimBook:
    """Who writes what in the current epoch. Pure bookkeeping, safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch: tuple[int, int] | None = None
        self._claimed: set[tuple[str, int]] = set()
        self._mistake = ""

    def open(self, epoch: tuple[int, int]) -> None:
        """Start an epoch; whatever is claimed for any other one is refused from now on."""
        with self._lock:
            self._epoch = epoch
            self._claimed = set()
            self._mistake = ""

    def close(self) -> None:
        """End the epoch: no task may start to write."""
        with self._lock:
            self._epoch = None

    def refusal(self, epoch: tuple[int, int], topic: str, partition: int) -> str:
        """Enter a claim; the empty string is a yes."""
        with self._lock:
            if epoch != self._epoch:
                return f"{topic}-{partition}: epoch {epoch} is over, the current one is {self._epoch}"
            if (topic, partition) in self._claimed:
                return f"{topic}-{partition} is already claimed in epoch {epoch}: a task ran twice"
            self._claimed.add((topic, partition))
            return ""

    def complaint(self, epoch: tuple[int, int], why: str) -> None:
        """Note why the micro-batch cannot be written: the first word counts, and only of the current epoch."""
        with self._lock:
            if epoch == self._epoch:
                self._mistake = self._mistake or why

    @property
    def mistake(self) -> str:
        """Why the last micro-batch cannot be written, however often it is tried; empty where nobody complained."""
        with self._lock:
            return self._mistake

    @property
    def claimed(self) -> frozenset[tuple[str, int]]:
        """What has been claimed in this epoch."""
        with self._lock:
            return frozenset(self._claimed)


class ClaimServer:
    """Answers claims while a query runs: listens on `bind`, and tells tasks to ask at `host`.

    `on_claim` is called for each claim that is granted, before the task hears of it: under transaction protocol V1
    the driver adds the partition to the transaction there.
    """

    def __init__(self, host: str, on_claim: Callable[[str, int], None] | None = None, bind: str | None = None) -> None:
        self.book = ClaimBook()
        self._on_claim = on_claim
        self._adding = threading.Lock()
        secret = secrets.token_hex(16)
        answer = self._answer

        class Handler(socketserver.StreamRequestHandler):
            timeout = _ANSWER_TIMEOUT_S

            def handle(self) -> None:
                line = self.rfile.readline(65536)
                if line:
                    self.wfile.write(json.dumps({"refused": answer(line)}).encode() + b"\n")

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server((bind or host, 0), Handler)
        port = cast("tuple[str, int]", self._server.server_address)[1]
        self.desk = ClaimDesk(host, port, secret)
        self._thread = threading.Thread(target=self._server.serve_forever, name="semel-claims", daemon=True)
        self._thread.start()

    def _answer(self, line: bytes) -> str:
        try:
            question = json.loads(line)
            secret, (producer_id, producer_epoch) = question["secret"], question["epoch"]
            mistake = question.get("mistake")
            topic, partition = (question["topic"], question["partition"]) if mistake is None else ("", -1)
        except (ValueError, KeyError, TypeError, AttributeError):
            return "not a claim"
        if not hmac.compare_digest(str(secret), self.desk.secret):
            return "this claim does not come from a task of this query"
        if mistake is not None:
            self.book.complaint((producer_id, producer_epoch), str(mistake))
            return ""
        refusal = self.book.refusal((producer_id, producer_epoch), topic, partition)
        if not refusal and self._on_claim is not None:
            with self._adding:
                try:
                    self._on_claim(topic, partition)
                except Exception as error:  # whatever went wrong, the task must hear of it instead of waiting
                    return f"{topic}-{partition} could not join the transaction: {error}"
        return refusal

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

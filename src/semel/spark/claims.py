"""How a task claims its place and takes its turns: questions to the driver over a socket.

The rules are in `machines/pipeline/claims.py`. Here are the socket, the secret that keeps strangers out, and the lock:
many tasks ask at once.

A task says with each question whether its record loops are compiled; the driver warns once if they are not.

A task that meets a row which can never be written reports it here too. Spark would wrap the error in stack traces, and
the driver could not tell such a row from a broken connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import socket
import socketserver
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn, cast

from semel.machines.pipeline.claims import ClaimBook, ClaimRefused, Epoch, Place, RowRefused
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

    def writer(self, epoch: Epoch, task: int, patience_ms: float) -> TaskClaims:
        """The claims of one attempt of a task. It waits for a turn up to `patience_ms`."""
        return TaskClaims(self, epoch, task, patience_ms)

    def complain(self, epoch: Epoch, why: str) -> None:
        """Tell the driver that this micro-batch can never be written, and why."""
        question = {"secret": self.secret, "epoch": list(epoch), "mistake": why[:_LONGEST_COMPLAINT]}
        with socket.create_connection((self.host, self.port), timeout=_ANSWER_TIMEOUT_S) as connection:
            connection.sendall(json.dumps(question).encode() + b"\n")
            connection.recv(1)  # it has been noted


_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TaskClaims:
    """What one attempt of a task may write. Used on the event loop.

    A connection carries one question at a time, because an answer waits until it is the task's turn. So there are as
    many connections as turns are waited for at once.
    """

    def __init__(self, desk: ClaimDesk, epoch: Epoch, task: int, patience_ms: float) -> None:
        self._desk, self._epoch, self._patience_s = desk, epoch, patience_ms / 1000
        self._idle: list[_Connection] = []
        #: The connections over which turns were given. The driver takes the end of one for the death of this task.
        self._with_turn: dict[Place, _Connection] = {}
        self._about = {
            "secret": desk.secret, "epoch": list(epoch), "task": task, "attempt": uuid.uuid4().hex,
            "compiled": _select.COMPILED,
        }  # fmt: skip
        #: The task's number in Spark's stage.
        self.task = task

    async def take_turn(self, topic: str, partition: int, records: int) -> int:
        """Wait for the turn at a partition. Returns the first sequence number, or raises `ClaimRefused`."""
        question = {"turn": [topic, partition], "records": records, "patience_s": self._patience_s}
        reader, writer = await self._connection()
        try:
            writer.write(self._line(question))
            async with asyncio.timeout(self._patience_s + _ANSWER_TIMEOUT_S):
                line = await reader.readline()
        except (OSError, TimeoutError):
            line = b""
        if not line:
            writer.close()
            raise ClaimRefused(
                f"the driver at {self._desk.host}:{self._desk.port} gave no answer about {topic}-{partition}"
            )
        answer = json.loads(line)
        if answer["refused"]:
            self._idle.append((reader, writer))
            raise ClaimRefused(answer["refused"])
        self._with_turn[topic, partition] = reader, writer
        return int(answer["sequence"])

    async def end_turn(self, topic: str, partition: int) -> None:
        """All is acknowledged: let the next task write. Nobody waits for an answer to this."""
        reader, writer = self._with_turn.pop((topic, partition))
        writer.write(self._line({"end": [topic, partition]}))
        await writer.drain()
        self._idle.append((reader, writer))

    async def close(self) -> None:
        """Close the connections. What was sent arrives."""
        for _, writer in (*self._idle, *self._with_turn.values()):
            writer.close()

    async def _connection(self) -> _Connection:
        if self._idle:
            return self._idle.pop()
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await asyncio.open_connection(self._desk.host, self._desk.port)

    def _line(self, question: dict[str, Any]) -> bytes:
        return json.dumps({**self._about, **question}).encode() + b"\n"


class OwnTurns:
    """The turns of the driver itself, if it writes a small micro-batch: by the same rules, without a socket."""

    #: In place of a task's number.
    task = 0

    def __init__(self, server: ClaimServer, epoch: Epoch, patience_ms: float) -> None:
        self._server, self._epoch, self._patience_s = server, epoch, patience_ms / 1000
        self._attempt = uuid.uuid4().hex

    async def take_turn(self, topic: str, partition: int, records: int) -> int:
        """The first sequence number, or `ClaimRefused`."""
        # In a thread: under the old protocol the partition is added to the transaction by this event loop meanwhile.
        answer = await asyncio.to_thread(
            self._server.wait_for_turn,
            self._epoch, self.task, self._attempt, (topic, partition), records, self._patience_s,
        )  # fmt: skip
        if answer["refused"]:
            raise ClaimRefused(answer["refused"])
        return int(answer["sequence"])

    async def end_turn(self, topic: str, partition: int) -> None:
        self._server.end_turn(self._epoch, self._attempt, (topic, partition))

    async def close(self) -> None:
        """There is nothing to close."""


def refuse_row(desk: ClaimDesk, epoch: Epoch, why: str) -> NoReturn:
    """Fail the task because of a row that can never be written, and tell the driver not to try again."""
    with contextlib.suppress(OSError):  # then the driver treats it as any other failure, and tries again
        desk.complain(epoch, why)
    raise RowRefused(why)


#: The turns that were given over one connection and have not ended: by partition, the epoch and the attempt.
_Turns = dict[Place, tuple[Epoch, str]]


class ClaimServer:
    """Answers claims on the driver while a query runs. Listens on `bind`; tasks connect to `host`. Port 0: any.

    `on_claim` is called for the first turn at each partition, before the task gets its answer: under transaction
    protocol V1 the driver adds the partition to the transaction there.
    """

    def __init__(
        self,
        host: str,
        on_claim: Callable[[str, int], None] | None = None,
        bind: str | None = None,
        port: int = 0,
    ) -> None:
        self._book = ClaimBook()
        self._changed = threading.Condition()
        self._on_claim = on_claim
        self._adding = threading.Lock()
        self._added: set[Place] = set()
        self._has_warned = False
        secret = secrets.token_hex(16)
        answer, is_over = self._answer, self._connection_ended

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                turns: _Turns = {}
                with contextlib.suppress(OSError):  # the task has ended
                    while line := self.rfile.readline(65536):
                        if (found := answer(line, str(self.client_address[0]), turns)) is not None:
                            self.wfile.write(json.dumps(found).encode() + b"\n")
                is_over(turns)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server((bind or host, port), Handler)
        port = cast("tuple[str, int]", self._server.server_address)[1]
        self.desk = ClaimDesk(host, port, secret)
        self._thread = threading.Thread(target=self._server.serve_forever, name="semel-claims", daemon=True)
        self._thread.start()

    def begin_epoch(self, epoch: Epoch, sequences: Mapping[Place, int] = MappingProxyType({})) -> None:
        """Grant claims of this epoch, and of no other. `sequences`: the next ones of partitions written before."""
        with self._changed:
            self._book.open(epoch, sequences)
            self._added = set()

    def end_epoch(self) -> None:
        """Grant no more claims. Tasks that wait for a turn are refused."""
        with self._changed:
            self._book.close()
            self._changed.notify_all()

    @property
    def mistake(self) -> str:
        """Why the last micro-batch can never be written; empty if no task complained."""
        with self._changed:
            return self._book.mistake

    @property
    def given(self) -> dict[tuple[int, str, int], int]:
        """How many records each task was given sequence numbers for, in this epoch."""
        with self._changed:
            return self._book.given

    @property
    def sequences(self) -> dict[Place, int]:
        """The next sequence number of each partition that was written in this transaction."""
        with self._changed:
            return self._book.sequences

    def _answer(self, line: bytes, asked_by: str, turns: _Turns) -> dict[str, Any] | None:
        try:
            question = json.loads(line)
            secret, (producer_id, producer_epoch, write_number) = question["secret"], question["epoch"]
            mistake, ended = question.get("mistake"), question.get("end")
            task, attempt = (int(question["task"]), str(question["attempt"])) if mistake is None else (-1, "")
            topic, partition = ended or question["turn"] if mistake is None else ("", -1)
            records, patience_s = int(question.get("records", 0)), float(question.get("patience_s", 0))
        except (ValueError, KeyError, TypeError, AttributeError):
            return {"refused": "not a claim"}
        if not hmac.compare_digest(str(secret), self.desk.secret):
            return {"refused": "this claim does not come from a task of this query"}
        epoch = (producer_id, producer_epoch, write_number)
        if question.get("compiled") is False:
            self._warn_of_slow_loops(asked_by)
        if mistake is not None:
            with self._changed:
                self._book.complain(epoch, str(mistake))
            return {"refused": ""}
        if ended:
            self.end_turn(epoch, attempt, (topic, partition))
            turns.pop((topic, partition), None)
            return None
        found = self.wait_for_turn(epoch, task, attempt, (topic, partition), records, patience_s)
        if not found["refused"]:
            turns[topic, partition] = epoch, attempt
        return found

    def _connection_ended(self, turns: _Turns) -> None:
        """A task that is gone in its turn never ends it: nobody may wait for that."""
        with self._changed:
            for place, (epoch, attempt) in turns.items():
                self._book.lose_turn(epoch, attempt, place)
            self._changed.notify_all()

    def end_turn(self, epoch: Epoch, attempt: str, place: Place) -> None:
        """All is acknowledged: the next one may write."""
        with self._changed:
            self._book.end_turn(epoch, attempt, place)
            self._changed.notify_all()

    def wait_for_turn(
        self, epoch: Epoch, task: int, attempt: str, place: Place, records: int, patience_s: float
    ) -> dict[str, Any]:
        """Wait for a turn at a partition: the first sequence number, or why it is refused."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            while True:
                if refusal := self._book.refusal(epoch, task, attempt):
                    return {"refused": refusal}
                sequence = self._book.take_turn(task, attempt, place, records)
                if sequence is not None:
                    break
                if (left_s := deadline - time.monotonic()) <= 0:
                    return {"refused": f"task {task} had no turn at {place[0]}-{place[1]} for {patience_s:.0f} s"}
                self._changed.wait(left_s)
        if self._on_claim is not None and place not in self._added:
            with self._adding:
                try:
                    self._on_claim(*place)
                except Exception as error:  # the task must get an answer whatever went wrong, instead of waiting
                    return {"refused": f"{place[0]}-{place[1]} could not join the transaction: {error}"}
            self._added.add(place)
        return {"refused": "", "sequence": sequence}

    def _warn_of_slow_loops(self, host: str) -> None:
        """Once for a query: it is the same for every task of an executor, and says nothing new the second time."""
        with self._changed:
            if self._has_warned:
                return
            self._has_warned = True
        log.warning(
            "the executor at %s runs the record loops in plain Python, which is several times slower: bring Semel's "
            "wheel there (--archives), or install it where there is a C compiler; see docs/spark-cluster.md",
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

"""How far a reader has to walk: the file hops of a request through the broker and of a micro-batch, counted by running.

    python -m tests.walks

A walk begins with the frame in `frame_received`. Python calls a profile function for every call on the broker's thread.
A *hop* is a call from a function in one file of `src/semel` to a function in another. A call that the event loop makes
later counts as a hop from the function that ran last. Not counted are

- a call that the same function made before: it is read once;
- a leaf of at most two statements (it calls nothing further): its name says what it does, and nobody opens it;
- generated and compiled code, which has no file to go to.

Everything runs twice before it is counted, so that imports, opening of files and filling of caches are not counted.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import Mock

import semel
from semel.broker.embedded import Broker
from semel.wire.messages.transactions import EndTxnRequest, InitProducerIdRequest
from tests.broker.raw import Raw, batch

SOURCE = str(Path(semel.__file__).parent) + "/"
BEGIN = "frame_received"
#: Starts the event loop of an embedded broker: no step of a walk.
RUNNER = SOURCE + "broker/embedded.py"
SMALL = 2


@dataclass
class Walk:
    """The calls between files, in the order they were first made, from `BEGIN` until `is_over` or a call of `end`."""

    is_over: Callable[[], bool]
    end: str = ""
    calls: list[tuple[CodeType, CodeType]] = field(default_factory=list)
    _state: str = "before"
    _last: CodeType | None = None
    _callers: set[CodeType] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE) or code.co_name.startswith("<"):
            return
        if self._state == "before" and code.co_name == BEGIN:
            self._state = "on the way"
        elif self._state == "on the way" and (code.co_name == self.end or self.is_over()):
            self._state = "over"
        if self._state != "on the way":
            return
        caller = frame.f_back
        while caller is not None and not _is_step(caller.f_code):
            caller = caller.f_back
        came_from = self._last if caller is None else caller.f_code
        self._last = code
        if came_from is None:
            return
        if caller is not None:
            self._callers.add(came_from)
        if came_from.co_filename != code.co_filename and (came_from, code) not in self.calls:
            self.calls.append((came_from, code))

    @property
    def hops(self) -> list[tuple[str, str]]:
        return [
            (_place(source), _place(target))
            for source, target in self.calls
            if target in self._callers or _statements(target) > SMALL
        ]

    @property
    def files(self) -> set[str]:
        return {place.split(":")[0] for hop in self.hops for place in hop}

    def __str__(self) -> str:
        lines = [f"{number:3}. {source} -> {target}" for number, (source, target) in enumerate(self.hops, 1)]
        return "\n".join([*lines, f"{len(self.hops)} hops, {len(self.files)} files"])


def _is_step(code: CodeType) -> bool:
    return code.co_filename.startswith(SOURCE) and code.co_filename != RUNNER and not code.co_name.startswith("<")


def _place(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(SOURCE)}: {code.co_qualname}"


@cache
def _functions(filename: str) -> dict[int, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file by their first line, decorators included."""
    return {
        min([node.lineno, *(each.lineno for each in node.decorator_list)]): node
        for node in ast.walk(ast.parse(Path(filename).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _statements(code: CodeType) -> int:
    body = _functions(code.co_filename)[code.co_firstlineno].body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the docstring
    return sum(isinstance(node, ast.stmt) for statement in body for node in ast.walk(statement))


def walked(broker: Broker, act: Callable[[], object], is_over: Callable[[], bool], end: str = "") -> Walk:
    """The walk of the request that `act` sends, until `is_over`, which is asked before every call, or until `end`."""
    walk = Walk(is_over, end)

    async def set_profile(function: Walk | None) -> None:
        sys.setprofile(function)

    broker.call(set_profile(walk))
    try:
        act()
    finally:
        broker.call(set_profile(None))
    return walk


def end_txn() -> Walk:
    """From an EndTxn(commit) of protocol V2 to a record that read_committed readers see."""
    with Broker() as broker, Raw(broker) as raw:
        raw.create("ledger")
        identity = raw.ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000), 5)
        producer_id, epoch = identity.producer_id, identity.producer_epoch

        def is_visible() -> bool:
            log = broker.server.topics.topics["ledger"].partitions[0].log
            return bool(log.last_stable_offset == log.end_offset)

        for _ in range(3):
            data = batch(b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
            raw.produce("ledger", data, transactional_id="t", version=12)
            request = EndTxnRequest(transactional_id="t", producer_id=producer_id, producer_epoch=epoch, committed=True)
            walk = walked(broker, partial(raw.ask, request, 5), is_visible)
            epoch += 1
        return walk


def produce() -> Walk:
    """From a Produce of an idempotent producer to its answer."""
    with Broker() as broker, Raw(broker) as raw:
        raw.create("ledger")
        identity = raw.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 5)
        assert identity.producer_id >= 0
        for sequence in range(3):
            data = batch(b"v", producer_id=identity.producer_id, producer_epoch=0, base_sequence=sequence)
            # What the loop does after the answer is written is not part of it.
            walk = walked(broker, partial(raw.produce, "ledger", data, version=12), lambda: False, "_write_answers")
        return walk


class MicroBatchWalk(Walk):
    """The calls between files on the driver and in the task. The client is a library: calls within it do not count.

    A coroutine is called by the function that waits for it, though the event loop of another thread runs it.
    """

    def __init__(self, begin: CodeType, is_over: Callable[[], bool]) -> None:
        super().__init__(is_over)
        self._begin = begin
        self._seen: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE) or code.co_name.startswith("<"):
            return
        if self._state == "before" and code is self._begin:
            self._state, self._last = "on the way", code
        elif self._state == "on the way" and self.is_over():
            self._state = "over"
        if self._state != "on the way" or frame in self._seen or code.co_name == AT_ANY_TIME:
            return
        self._seen.add(frame)
        caller = frame.f_back
        while caller is not None and not _is_ours(caller.f_code):
            caller = caller.f_back
        is_library = code.co_filename.removeprefix(SOURCE).startswith(LIBRARY)
        if caller is None:
            came_from = None if is_library else self._last
        else:
            self._callers.add(caller.f_code)
            came_from = None if caller.f_code.co_filename.removeprefix(SOURCE).startswith(LIBRARY) else caller.f_code
            if came_from is None and not is_library:
                came_from = self._last
        # What the event loop runs next was waited for by whoever entered the library.
        self._last = came_from or self._last if is_library else code
        if came_from is None:
            return
        if came_from.co_filename != code.co_filename and (came_from, code) not in self.calls:
            self.calls.append((came_from, code))


#: Runs in a thread of its own at some time after the task has ended: it is in nobody's way.
AT_ANY_TIME = "_connection_ended"

#: Rooms whose insides a reader of the pipeline need not follow.
LIBRARY = ("client/", "wire/", "errors.py", "config/")


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<")


def micro_batch() -> Walk:
    """A micro-batch of one task, from foreachBatch to its commit.

    Spark itself is left out: a stand-in hands the rows to the task, in this process. The call to `kafka_columns`, which
    only builds Spark's plan, is entered by hand.
    """
    import pyarrow as pa

    from semel.client.blocking.loop_thread import LoopThread
    from semel.machines.pipeline.driver_transaction import DriverTransaction
    from semel.spark import batch_transaction, connections, routing, sink, task_function
    from semel.spark.batch_transaction import Step
    from semel.spark.checkpoint import Checkpoint
    from semel.spark.claims import ClaimServer
    from semel.spark.kafka_options import DEFAULT_PRODUCER, ClientSettings
    from semel.spark.outputs import Outputs
    from semel.spark.parts import Parts
    from semel.spark.transaction_client import TransactionClient

    class StoredCheckpoint(Checkpoint):
        """A checkpoint whose files need no Hadoop."""

        def __init__(self) -> None:
            self.location, self._local_folder = "memory", None

        def _read(self, name: str) -> str:
            end = int(name.rpartition("/")[2]) + 1 if name.startswith("offsets/") else 0
            return f'v1\n{{}}\n{{"payments":{{"0":{end}}}}}' if end else '{"id":"0e6ba8b4-93b8-4b1e-8a55-2f7e9cb0a6d1"}'

        def _exists(self, name: str) -> bool:
            return True

    class Rows:
        """What Spark would do with the frame: run the task over one batch of rows."""

        def __init__(self) -> None:
            self.reports: list[dict[str, Any]] = []
            self.sparkSession: Any = Mock(conf=Mock(get=lambda _: "10000"))

        def coalesce(self, _: int) -> Rows:
            return self

        def run(self, task: Callable[[Any], Any]) -> Rows:
            rows = {"value": pa.array([b"v"], pa.binary()), "partition": pa.array([0], pa.int32())}
            self.reports = [row for part in task(iter([pa.RecordBatch.from_pydict(rows)])) for row in part.to_pylist()]
            return self

        def collect(self) -> list[tuple[Any, ...]]:
            return [tuple(row.values()) for row in self.reports]

    steps: list[Step] = []
    with Broker() as broker, Raw(broker) as raw:
        raw.create("payments")
        raw.create("ledger")
        settings = ClientSettings({"bootstrap.servers": broker.bootstrap_servers})
        loop = LoopThread("walk")
        cluster = loop.run(connections.connect(settings))
        claims = ClaimServer("127.0.0.1")
        saved = batch_transaction.kafka_columns, task_function.TaskFunctions.over
        try:
            client = TransactionClient(cluster, DriverTransaction("walk", "walk", timeout_ms=60_000))
            given = batch_transaction.OutputSettings(settings, DEFAULT_PRODUCER, 1, None, (True,))
            pipeline = sink.ExactlyOnceSink(
                batch_transaction.BatchTransaction(loop, client, claims, given), StoredCheckpoint(),
                Outputs("ledger").write, attempts=1, keeps_state=False, observer=lambda step, _: steps.append(step),
                parts=Parts(1),
            )  # fmt: skip
            batch_transaction.kafka_columns = lambda *_: (Rows(), ())  # type: ignore[assignment]
            task_function.TaskFunctions.over = lambda _, rows, names, function: rows.run(function)  # type: ignore[method-assign]
            for batch_id in range(3):
                steps.clear()
                walk = MicroBatchWalk(sink.ExactlyOnceSink.__call__.__code__, lambda: Step.COMMITTED in steps)
                loops = [loop, *(task_loop for task_loop, _ in connections._clusters.values())]
                for each in loops:
                    each.loop.call_soon_threadsafe(sys.setprofile, walk)
                threading.setprofile(walk)
                sys.setprofile(walk)
                try:
                    pipeline(Rows(), batch_id)
                finally:
                    sys.setprofile(None)
                    threading.setprofile(None)
                    for each in loops:
                        each.loop.call_soon_threadsafe(sys.setprofile, None)
        finally:
            batch_transaction.kafka_columns, task_function.TaskFunctions.over = saved  # type: ignore[method-assign]
            claims.close()
            for task_loop, task_cluster in connections._clusters.values():
                task_loop.run(task_cluster.close())
                task_loop.close()
            connections._clusters.clear()
            loop.run(cluster.close())
            loop.close()
    produce = batch_transaction.BatchTransaction._run_tasks.__code__
    walk.calls.append((produce, routing.kafka_columns.__code__))
    walk.calls.append((produce, task_function.TaskFunctions.over.__code__))
    return walk


if __name__ == "__main__":
    for walk in (produce, end_txn, micro_batch):
        print(walk.__doc__, walk(), sep="\n")

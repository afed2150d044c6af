"""How far a reader has to walk: the file hops of one request through the broker, counted by running it.

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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

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
    """The calls between files, in the order they were first made, from `BEGIN` until `is_over`."""

    is_over: Callable[[], bool]
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
        elif self._state == "on the way" and self.is_over():
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


def walked(broker: Broker, act: Callable[[], object], is_over: Callable[[], bool]) -> Walk:
    """The walk of the request that `act` sends, until `is_over`, which is asked before every call."""
    walk = Walk(is_over)

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


if __name__ == "__main__":
    print(end_txn())

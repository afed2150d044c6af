"""The audit log: what was denied, and who could not show who they are.

Guarantees:

- Logger `semel.audit` gets one line of JSON for each denied request, and one for each failed authentication.
- A secret is never in it. What a client made up (names) is cut, and escaped so that it cannot fake a line.
- A second has a bounded number of lines, in all and for each principal at a host, so that nobody can fill the disk or
  hide another's line among their own. What was left out is counted, in a line of its own and in the metrics.
- Nothing is done as long as nothing is denied.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from semel.machines.security.access import AccessRules, Operation, ResourceType
from semel.wire.apis import APIS

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

logger = logging.getLogger("semel.audit")

#: How many lines a second has at most, and how many of them for one principal at one host.
LINES_PER_SECOND = 100
LINES_PER_SOURCE = 20
#: A line names so many resources of a request at most; the others are counted.
NAMED_RESOURCES = 10
#: A name that a client made up is cut after so many characters.
NAME_CHARACTERS = 256

_DENIED, _FAILED = "denied", "authentication failed"


class Audit:
    """Writes the audit log of one broker."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        #: The lines of this second, in all and by source, and what was left out of it by event.
        self._written = 0
        self._by_source: Counter[tuple[str, str]] = Counter()
        self._left_out: Counter[str] = Counter()
        self._is_counting = False
        #: The denied requests of this turn of the loop, each with its line, or with None where that is left out.
        self._requests: dict[Call, dict[str, Any] | None] = {}

    def denied(self, call: Call, access: AccessRules, operation: Operation, kind: ResourceType, name: str) -> None:
        """A request was denied something. All that it is denied in one turn of the loop makes one line."""
        if call not in self._requests:
            if not self._requests:
                self._broker.loop.call_soon(self._write_requests)
            self._broker.metrics.denied[call.api_key] += 1
            self._requests[call] = self._line_of(call, access, operation, kind, name)
        elif (line := self._requests[call]) is not None:
            line["denied"] += 1
            if line["denied"] <= NAMED_RESOURCES:
                line["also"].append(f"{_title(operation)} {_title(kind)}:{_cut(name)}")

    def authentication_failed(self, *, host: str, listener: str, mechanism: str, principal: str, why: str) -> None:
        """Somebody could not show who they are. `principal` is what they claim, empty if that is not known."""
        self._broker.metrics.failed_authentications[listener] += 1
        if self._may_write(_FAILED, principal, host):
            self._write(
                {
                    **self._begin(_FAILED, principal, host, listener),
                    "mechanism": mechanism,
                    "why": _cut(why),
                }
            )

    def close(self) -> None:
        """Write what is not written yet."""
        self._write_requests()
        self._end_second()

    def _line_of(
        self, call: Call, access: AccessRules, operation: Operation, kind: ResourceType, name: str
    ) -> dict[str, Any] | None:
        who, host = call.connection.who, call.connection.peer[0]
        if not self._may_write(_DENIED, who, host):
            return None
        return {
            **self._begin(_DENIED, who, host, call.connection.listener_name),
            "client_id": _cut(call.client_id),
            "api": APIS[call.api_key].name,
            "operation": _title(operation),
            "resource": f"{_title(kind)}:{_cut(name)}",
            "why": _cut(access.decide(who, host, operation, kind, name).why),
            "denied": 1,
            "also": [],
        }

    def _begin(self, event: str, principal: str, host: str, listener: str) -> dict[str, Any]:
        time = datetime.fromtimestamp(self._broker.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        return {"time": time, "event": event, "principal": _cut(principal), "host": host, "listener": listener}

    def _write_requests(self) -> None:
        requests, self._requests = self._requests, {}
        for line in requests.values():
            if line is not None:
                self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        logger.warning("%s", json.dumps(line))

    # What a second may have

    def _may_write(self, event: str, principal: str, host: str) -> bool:
        if not self._is_counting:
            self._is_counting = True
            self._broker.loop.call_later(1.0, self._end_second)
        # A claimed name is no source: whoever guesses names would be a new one with each.
        source = (principal if event == _DENIED else "", host)
        if self._written >= LINES_PER_SECOND or self._by_source[source] >= LINES_PER_SOURCE:
            self._left_out[event] += 1
            self._broker.metrics.audit_lines_left_out += 1
            return False
        self._written += 1
        self._by_source[source] += 1
        return True

    def _end_second(self) -> None:
        left_out, self._left_out = self._left_out, Counter()
        self._written = 0
        self._by_source.clear()
        self._is_counting = False
        if left_out:
            line = self._begin("left out", "", "", "")
            self._write({"time": line["time"], "event": line["event"], "lines": dict(left_out)})


def _title(word: Operation | ResourceType) -> str:
    """Kafka's spelling: IDEMPOTENT_WRITE is IdempotentWrite."""
    return word.name.title().replace("_", "")


def _cut(name: str) -> str:
    """What a client made up, at a length that a line can have."""
    return name if len(name) <= NAME_CHARACTERS else name[:NAME_CHARACTERS] + "..."

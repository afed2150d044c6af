"""Throttling: a client above its quota sends nothing to a broker until the time that the broker asked for is over.

Guarantees: waiting requests go out in the order in which they came, as the batches of an idempotent producer must;
responses of versions before KIP-219 cause no wait, because the broker waited itself before it answered. Requests to
coordinators wait separately: a consumer that fetches too much must not miss its heartbeats.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from semel.wire.apis import ApiKey

#: The first version in which the client has to wait. APIs that are not listed are newer than KIP-219.
_CLIENT_WAITS_SINCE = {
    ApiKey.PRODUCE: 6,
    ApiKey.FETCH: 8,
    ApiKey.LIST_OFFSETS: 3,
    ApiKey.METADATA: 6,
    ApiKey.OFFSET_COMMIT: 4,
    ApiKey.OFFSET_FETCH: 4,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.HEARTBEAT: 2,
    ApiKey.LEAVE_GROUP: 2,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.DESCRIBE_GROUPS: 2,
    ApiKey.LIST_GROUPS: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.DELETE_TOPICS: 2,
    ApiKey.DELETE_RECORDS: 1,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.ALTER_CONFIGS: 1,
    ApiKey.CREATE_PARTITIONS: 1,
    ApiKey.DELETE_GROUPS: 1,
}
#: The lanes of requests to coordinators; joins have their own connection.
_COORDINATOR_LANES = ("coordinator", "join")


@dataclass(slots=True)
class _Gate:
    """Until when nothing may be sent, and the queue of requests that wait."""

    until: float = 0.0
    queue: asyncio.Lock = field(default_factory=asyncio.Lock)


class Throttles:
    """The throttle times that brokers have given one client. Everything happens on one loop."""

    def __init__(self) -> None:
        self._gates: dict[tuple[int, bool], _Gate] = {}
        self._closing = asyncio.Event()

    def note(self, node_id: int, lane: str, api: ApiKey, version: int, response: Any) -> None:
        """Remember the throttle time of a response, if it has one."""
        wait_ms = getattr(response, "throttle_time_ms", 0)
        if wait_ms > 0 and version >= _CLIENT_WAITS_SINCE.get(api, 0):
            gate = self._gates.setdefault((node_id, lane in _COORDINATOR_LANES), _Gate())
            gate.until = max(gate.until, asyncio.get_running_loop().time() + wait_ms / 1000)

    def has_any(self, node_id: int, lane: str) -> bool:
        """Whether this node ever asked to wait."""
        return bool(self._gates) and (node_id, lane in _COORDINATOR_LANES) in self._gates

    def left_s(self, node_id: int, lane: str) -> float:
        """For how many seconds nothing may be sent to this node; 0 if there is no limit."""
        gate = self._gates.get((node_id, lane in _COORDINATOR_LANES))
        return 0.0 if gate is None else max(0.0, gate.until - asyncio.get_running_loop().time())

    def longest_s(self) -> float:
        """The longest time that is left, of all brokers."""
        now = asyncio.get_running_loop().time()
        return max((gate.until - now for gate in self._gates.values()), default=0.0)

    async def passed(self, node_id: int, lane: str) -> None:
        """Wait until this request may be sent, after all requests that came before it."""
        gate = self._gates.get((node_id, lane in _COORDINATOR_LANES))
        if gate is None:
            return
        async with gate.queue:
            while (left := self.left_s(node_id, lane)) > 0 and not self._closing.is_set():
                try:
                    async with asyncio.timeout(left):
                        await self._closing.wait()
                except TimeoutError:
                    continue

    def close(self) -> None:
        """End all waits: the client is closed."""
        self._closing.set()

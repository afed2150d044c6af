"""Waiting where a broker asked for it: a client above its quota sends nothing to that broker until its time is over.

Guarantees: what waits goes out in the order it came, because the batches of an idempotent producer must; answers of
versions from before KIP-219 ask for nothing, because their broker has waited itself before it answered. Coordinators
are waited for apart: a consumer that fetches too much must not miss its heartbeats for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from semel.wire.apis import ApiKey

#: From these versions on it is the client who waits; APIs that are not here have come later.
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
#: Where a consumer speaks to its coordinator; joins have a connection of their own.
_COORDINATOR_LANES = ("coordinator", "join")


@dataclass(slots=True)
class _Gate:
    """Until when nothing may pass, and the queue of those who want to."""

    until: float = 0.0
    queue: asyncio.Lock = field(default_factory=asyncio.Lock)


class Throttles:
    """The waits that brokers have asked one client for. Everything happens on one loop."""

    def __init__(self) -> None:
        self._gates: dict[tuple[int, bool], _Gate] = {}
        self._closing = asyncio.Event()

    def note(self, node_id: int, lane: str, api: ApiKey, version: int, response: Any) -> None:
        """Heed the wait that an answer asks for, if it asks for one."""
        wait_ms = getattr(response, "throttle_time_ms", 0)
        if wait_ms > 0 and version >= _CLIENT_WAITS_SINCE.get(api, 0):
            gate = self._gates.setdefault((node_id, lane in _COORDINATOR_LANES), _Gate())
            gate.until = max(gate.until, asyncio.get_running_loop().time() + wait_ms / 1000)

    def left_s(self, node_id: int, lane: str) -> float:
        """For how long nothing may be sent; 0 when it may."""
        gate = self._gates.get((node_id, lane in _COORDINATOR_LANES))
        return 0.0 if gate is None else max(0.0, gate.until - asyncio.get_running_loop().time())

    def longest_s(self) -> float:
        """How much of the longest wait is left, whichever broker asked for it."""
        now = asyncio.get_running_loop().time()
        return max((gate.until - now for gate in self._gates.values()), default=0.0)

    async def passed(self, node_id: int, lane: str) -> None:
        """Wait until nothing keeps this request any longer, and until those before it have passed."""
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
        """Nobody waits any longer: there is nothing left to send on."""
        self._closing.set()

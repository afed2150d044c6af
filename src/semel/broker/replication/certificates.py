"""Death certificates: a broker whose port refuses connections is taken out of the cluster at once (E6).

Guarantees: only who refuses twice is certified, never who does not answer. While that is found out, and until another
is elected, no client is sent to the dead broker: one that asks who leads is held back for a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from semel.cluster.session import ZooKeeperError
from semel.machines.controller.decide import decide
from semel.machines.controller.registration import Certify

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership

logger = logging.getLogger(__name__)

#: A port must refuse twice, so long apart.
PROBE_PAUSE_S, PROBE_TIMEOUT_S = 0.1, 1.0
#: For so long after the first refusal an election is expected. After that clients are told what the register says.
ELECTED_WITHIN_S = 0.8
#: And for so long after a connection was lost it is expected that a dead broker's port refuses.
REFUSED_WITHIN_S = 0.25
LOOK_S = 0.02


class Certificates:
    """Whom this broker takes for dead."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        #: Since when.
        self._suspected: dict[int, float] = {}
        #: Whose port has refused a connection: the broker's epoch, and since when it refuses.
        self._refused: dict[int, tuple[int, float]] = {}

    def is_suspected(self, broker: int) -> bool:
        """Whether we are finding out if this broker is dead."""
        return broker in self._suspected

    def refuses(self, broker: int) -> bool:
        """Whether the port of this broker, in its last known life, has just refused a connection."""
        found = self._refused.get(broker)
        if found is None:
            return False
        epoch, since_s = found
        is_recent = asyncio.get_running_loop().time() - since_s < ELECTED_WITHIN_S
        return is_recent and self._membership.image.broker_epoch(broker) == epoch

    def _may_have_died(self) -> set[int]:
        """Whose connection was just lost, and whose port refuses since then."""
        if not self._suspected and not self._refused:
            return set()
        lost_after_s = asyncio.get_running_loop().time() - REFUSED_WITHIN_S
        lost = {broker for broker, since_s in self._suspected.items() if since_s > lost_after_s}
        return lost | {broker for broker in self._refused if self.refuses(broker)}

    def expects_elections(self) -> bool:
        """Whether any broker has just died, or may have. A client may know earlier than we do: it is looked at."""
        for broker in self._membership.peers.lost():
            self.suspect(broker)
        return bool(self._may_have_died())

    def awaits_election(self, topics: Iterable[str] | None) -> bool:
        """Whether one of these topics, or of all, has a partition whose leader has just died, or may have."""
        dead = self._may_have_died()
        if not dead:
            return False
        names = None if topics is None else set(topics)
        return any(
            state.leader in dead and (names is None or partition.topic in names)
            for partition, (state, _) in self._membership.image.states.items()
        )

    async def elected(self, topics: Iterable[str] | None) -> None:
        """Return once each partition of these topics has a leader that is not known to be dead, or time is up."""
        while self.awaits_election(topics):
            # A look is cheap, and who is not dead after all is known without a change in ZooKeeper.
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._membership.changed()

    def suspect(self, broker: int) -> None:
        """A connection to or from this broker was lost."""
        if broker not in self._suspected and broker in self._membership.reader.registrations:
            self._suspected[broker] = asyncio.get_running_loop().time()
            self._membership.spawn(self._certify(broker))

    async def _certify(self, broker: int) -> None:
        membership = self._membership
        try:
            epoch = membership.image.broker_epoch(broker)
            if not await membership.peers.probe(broker, PROBE_TIMEOUT_S):
                return
            if self._refused.get(broker, (None,))[0] != epoch:
                self._refused[broker] = epoch, asyncio.get_running_loop().time()
            await asyncio.sleep(PROBE_PAUSE_S)
            if not await membership.peers.probe(broker, PROBE_TIMEOUT_S):
                del self._refused[broker]
                return
            (multi,) = decide(membership.image, Certify(broker, epoch))
            with suppress(ZooKeeperError):
                await membership.session.multi(multi.operations)
                logger.warning("broker %d refuses connections: certified dead", broker)
            membership.reader.refresh_brokers()
        finally:
            del self._suspected[broker]

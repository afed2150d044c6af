"""Before an administrator's marker is written in a cluster: does a coordinator on another broker know the transaction?

Guarantees: an abort marker is written only if no coordinator of the cluster has an open or decided transaction of this
producer. Else a part of the transaction would be aborted, and its producer or its coordinator could commit the rest.
If one of the coordinators cannot be asked, or moves meanwhile, nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from semel.broker.topics.internal import TRANSACTION_STATE
from semel.cluster.session import ZooKeeperError
from semel.errors import Disconnected, ErrorCode, Refused
from semel.machines.transactions.states import OPEN
from semel.wire.messages.transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer

LIST_VERSION, TIMEOUT_S = 0, 5.0


async def open_elsewhere(broker: BrokerServer, producer_ids: Iterable[int]) -> dict[int, Refused]:
    """Why the markers of these producers may not be written. Those that are not there may."""
    wanted = sorted(set(producer_ids))
    assert broker.cluster is not None
    try:
        found = await _ask_everybody(broker.cluster, wanted)
    except Refused as refused:
        return dict.fromkeys(wanted, refused)
    return {
        producer_id: Refused(
            ErrorCode.INVALID_TXN_STATE,
            f"broker {coordinator} coordinates the transaction of producer {producer_id} ({transactional_id!r}) and "
            "has not ended it: it would be torn. Fence its transactional id instead (InitProducerId)",
        )
        for producer_id, (coordinator, transactional_id) in found.items()
    }


async def _ask_everybody(membership: Membership, producer_ids: list[int]) -> dict[int, tuple[int, str]]:
    before = await _coordinators(membership)
    found: dict[int, tuple[int, str]] = {}
    request = ListTransactionsRequest(
        state_filters=sorted(state.title for state in OPEN), producer_id_filters=producer_ids
    )
    # All of them, and not only those that lead now: one may have begun to a moment ago.
    for other in membership.live_brokers():
        if other == membership.broker_id:
            continue
        try:
            answer: ListTransactionsResponse = await membership.peers.ask(
                other, "questions", request, LIST_VERSION, TIMEOUT_S
            )
        except Disconnected as gone:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {other} does not answer: {gone}") from None
        if answer.error_code != ErrorCode.NONE or answer.unknown_state_filters:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {other} does not know all transactions yet")
        for row in answer.transaction_states:
            found[row.producer_id] = other, row.transactional_id
    if await _coordinators(membership) != before:
        raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "coordinators are moving: try again")
    return found


async def _coordinators(membership: Membership) -> list[tuple[int, int]]:
    """Who leads each partition of the transactions' log now, by ZooKeeper, and under which epoch."""
    try:
        await membership.read_again()
    except ZooKeeperError as error:
        raise Refused(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"ZooKeeper does not tell who coordinates: {error}"
        ) from None
    known = membership.image.topics.get(TRANSACTION_STATE)
    leaders = []
    for index in sorted(known.assignment.partitions) if known is not None else ():
        state, _ = membership.state_of(TRANSACTION_STATE, index)
        if state is None or not membership.lives(state.leader):
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"nobody leads {TRANSACTION_STATE}-{index}")
        leaders.append((state.leader, state.leader_epoch))
    return leaders

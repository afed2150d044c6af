"""Fetch: stored batches as they are on disk, at once or when there are enough.

Guarantees:

- A reader never gets anything at or past the high watermark, and a read_committed reader nothing at or past the last
  stable offset. It also gets the aborted transactions of exactly that range, also after a long poll.
- A long poll ends when enough bytes are visible, when a partition is deleted, or when its time is up.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from semel.broker.access.guards.fetch import without_denied
from semel.broker.dispatch import Pace
from semel.broker.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    Fetched,
    FetchedPartition,
    FetchSession,
    FetchSessions,
    TopicName,
)
from semel.broker.handlers.offsets import check_leader_epoch
from semel.broker.topics.partition import Partition
from semel.errors import ErrorCode, Refused
from semel.log.partition_log import PartitionLog
from semel.log.reader import NO_LIMIT, Extent
from semel.wire.messages.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

_PartitionData = FetchResponse.PartitionData
_TopicResponse = FetchResponse.FetchableTopicResponse
_Aborted = FetchResponse.AbortedTransaction
_Wanted = list[tuple[tuple[TopicName, int], FetchedPartition]]
_Read = list[tuple[tuple[TopicName, int], FetchedPartition, FetchResponse.PartitionData]]

#: How many partitions are read in one piece.
PARTITIONS_AT_ONCE = 200
#: How many bytes are read in one piece. More than this of one partition is read on another thread.
BYTES_AT_ONCE = 2 * 1024 * 1024


class _Round:
    """One pass over the partitions of a fetch."""

    __slots__ = ("data", "extent", "failed", "size_bytes")

    def __init__(self) -> None:
        self.data: _Read = []
        self.size_bytes = 0
        self.failed = False
        #: What is still to be read of the last partition in `data`; it counts in `size_bytes`.
        self.extent: Extent | None = None


def fetch(broker: BrokerServer, request: FetchRequest, call: Call) -> Any:
    """Answer now if there are enough bytes or the client does not wait, else wait for more."""
    if (request.replica_id if call.version < 15 else request.replica_state.replica_id) >= 0:
        return _feed(broker, request, call)
    if call.is_long and request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        return _fetch_long(broker, request, call)
    return _fetch(broker, request, call)


async def _fetch_long(broker: BrokerServer, request: FetchRequest, call: Call) -> Any:
    partitions = await broker.beside(partial(FetchSessions.partitions_of, request, call.version))
    reply = _fetch(broker, request, call, partitions)
    return await reply if type(reply) is CoroutineType else reply


def _fetch(broker: BrokerServer, request: FetchRequest, call: Call, named: Fetched | None = None) -> Any:
    try:
        if broker.quotas is not None:
            broker.quotas.bound_fetch(request, call)
        fetched, session, incremental = broker.fetch_sessions.begin(request, call.version, named)
    except Refused as error:
        return FetchResponse(error_code=error.code)
    if broker.access is not None:
        if len(fetched) > PARTITIONS_AT_ONCE:
            return _fetch_allowed(broker, broker.access, request, call, list(fetched.items()), session, incremental)
        fetched = without_denied(broker.access, call, fetched)
    return _serve(broker, request, call, fetched, session, incremental)


async def _fetch_allowed(
    broker: BrokerServer,
    access: AccessControl,
    request: FetchRequest,
    call: Call,
    wanted: _Wanted,
    session: FetchSession | None,
    incremental: bool,
) -> FetchResponse:
    """Ask the access rules about very many partitions, some at a time, then fetch."""
    pace = Pace(broker, call)
    fetched: Fetched = {}
    for start in range(0, len(wanted), PARTITIONS_AT_ONCE):
        fetched.update(without_denied(access, call, dict(wanted[start : start + PARTITIONS_AT_ONCE])))
        await pace.rest()
    reply = _serve(broker, request, call, fetched, session, incremental)
    answer: FetchResponse = await reply if type(reply) is CoroutineType else reply
    return answer


def _serve(
    broker: BrokerServer,
    request: FetchRequest,
    call: Call,
    fetched: Fetched,
    session: FetchSession | None,
    incremental: bool,
) -> Any:
    round_, wanted = _Round(), iter(fetched.items())
    if len(fetched) > PARTITIONS_AT_ONCE or not _read(broker, request, wanted, round_):
        call.connection.reserve(round_.size_bytes)
        progress = _progress(broker, request, fetched) if round_.data else None
        # A copy: other requests may use the same session meanwhile.
        left = list(wanted)
        return _fetch_in_pieces(broker, request, call, fetched, session, incremental, round_, left, progress)
    if round_.failed or round_.size_bytes >= _enough_bytes(broker, request) or request.max_wait_ms <= 0 or not fetched:
        return _response(broker, call, round_, session, incremental)
    # Measured now: the coroutine starts later, and what is appended until then must not be missed.
    partitions = [_find(broker, one) for one in fetched.values()]
    progress = _Progress(partitions, request.isolation_level)
    return _wait(broker, request, call, fetched, session, incremental, round_.size_bytes, progress)


def _progress(broker: BrokerServer, request: FetchRequest, fetched: Fetched) -> _Progress | None:
    """None if the fetch is not going to wait."""
    if request.max_wait_ms > 0:
        with suppress(Refused):
            return _Progress([_find(broker, one) for one in fetched.values()], request.isolation_level)
    return None


async def _fetch_in_pieces(
    broker: BrokerServer,
    request: FetchRequest,
    call: Call,
    fetched: Fetched,
    session: FetchSession | None,
    incremental: bool,
    round_: _Round,
    left: _Wanted,
    progress: _Progress | None,
) -> FetchResponse:
    """A fetch of very many partitions or bytes, some at a time. `round_` has what was read already."""
    if not round_.data:
        # Measured before anything is read: what is appended meanwhile counts as new.
        progress = _progress(broker, request, fetched)
    await _read_in_pieces(broker, request, call, round_, left, Pace(broker, call))
    if round_.failed or progress is None or round_.size_bytes >= _enough_bytes(broker, request):
        return await _answer(broker, call, round_, session, incremental)
    call.connection.reserve(0)
    return await _wait(broker, request, call, fetched, session, incremental, round_.size_bytes, progress)


async def _read_in_pieces(
    broker: BrokerServer, request: FetchRequest, call: Call, round_: _Round, left: _Wanted, pace: Pace
) -> None:
    """Each partition's records belong to the watermarks beside them, whatever happens between two pieces."""
    wanted = iter(left)
    while True:
        # Other requests are served meanwhile, and must see how much memory this one uses.
        call.connection.reserve(round_.size_bytes)
        if round_.extent is not None:
            await _read_extent(broker, request, round_, round_.extent)
            pace = Pace(broker, call)
        elif round_.data:
            await pace.rest()
        if _read(broker, request, wanted, round_):
            call.connection.reserve(round_.size_bytes)
            return


async def _read_extent(broker: BrokerServer, request: FetchRequest, round_: _Round, extent: Extent) -> None:
    """Read what was found of the last partition."""
    records = None
    with suppress(OSError):
        records = await broker.beside(extent.read)
    round_.extent = None
    if records is not None:
        round_.data[-1][2].records = records
        return
    # The file has changed, or cannot be read: answer with what it holds now, or with the error.
    round_.size_bytes -= extent.size_bytes
    key, one, _ = round_.data.pop()
    _read(broker, request, iter([(key, one)]), round_, NO_LIMIT)


async def _response_of_many(
    broker: BrokerServer, call: Call, round_: _Round, session: FetchSession | None, incremental: bool
) -> FetchResponse:
    call.is_long = True
    pace = Pace(broker, call)
    data, round_.data = round_.data, []
    response = _response(broker, call, round_, session, incremental)
    if response.throttle_time_ms:
        return response
    topics: dict[TopicName, FetchResponse.FetchableTopicResponse] = {}
    for start in range(0, len(data), PARTITIONS_AT_ONCE):
        _fill(topics, data[start : start + PARTITIONS_AT_ONCE], session, incremental)
        await pace.rest()
    response.responses = list(topics.values())
    return response


def _feed(broker: BrokerServer, request: FetchRequest, call: Call) -> Any:
    """A fetch of a replica."""
    from semel.broker.replication.feeding import fetch as feed

    return feed(broker, request, call)


def _enough_bytes(broker: BrokerServer, request: FetchRequest) -> int:
    """How many bytes a fetch waits for. If there is less memory for its answer, it does not wait for more."""
    return request.min_bytes if request.min_bytes <= broker.unread.answer_bytes else 1


class _Progress:
    """The ends of a waiting fetch's partitions when it last read them."""

    __slots__ = ("_isolation", "_roles", "partitions", "stored_bytes", "visible")

    def __init__(self, partitions: list[Partition], isolation: int) -> None:
        self.partitions = partitions
        self._isolation = isolation
        self.visible, self.stored_bytes, self._roles = self._measure()

    def _measure(self) -> tuple[int, int, int]:
        visible = stored_bytes = roles = 0
        for partition in self.partitions:
            log = partition.open_log
            role = partition.reader_role
            if log is None or role < 0:
                # Deleted, or on other brokers only, meanwhile. No other measurement is equal to this one.
                return -1, 0, -1
            roles += role
            visible += log.last_stable_offset if self._isolation else log.high_watermark
            stored_bytes += log.size_bytes
        return visible, stored_bytes, roles

    def is_worth_a_look(self, missing_bytes: int) -> bool:
        """Whether reading again may find enough bytes."""
        visible, stored_bytes, roles = self._measure()
        if visible == self.visible and roles == self._roles:
            return False
        # For read_committed a small marker may make much visible. Otherwise the stored bytes tell enough.
        grown_bytes = stored_bytes - self.stored_bytes
        same_roles = visible >= 0 and roles == self._roles
        if same_roles and not self._isolation and 0 <= grown_bytes < missing_bytes:
            return False
        self.visible, self.stored_bytes, self._roles = visible, stored_bytes, roles
        return True


async def _wait(
    broker: BrokerServer,
    request: FetchRequest,
    call: Call,
    fetched: Fetched,
    session: FetchSession | None,
    incremental: bool,
    size_bytes: int,
    progress: _Progress,
) -> FetchResponse:
    bell = _Bell(broker.loop)
    ring = bell.ring
    for partition in progress.partitions:
        partition.watchers[ring] = None
    timer = broker.loop.call_later(request.max_wait_ms / 1000, bell.time_is_up)
    try:
        while not bell.is_late:
            enough_bytes = _enough_bytes(broker, request)
            if progress.is_worth_a_look(enough_bytes - size_bytes):
                round_ = await _look_again(broker, request, call, fetched)
                if round_.failed or round_.size_bytes >= enough_bytes:
                    return await _answer(broker, call, round_, session, incremental)
                size_bytes = round_.size_bytes
                if len(fetched) > PARTITIONS_AT_ONCE or size_bytes >= BYTES_AT_ONCE:
                    call.connection.reserve(0)
            await bell.rung
            bell.rung = broker.loop.create_future()
    finally:
        timer.cancel()
        for partition in progress.partitions:
            partition.watchers.pop(ring, None)
    return await _answer(broker, call, await _look_again(broker, request, call, fetched), session, incremental)


async def _look_again(broker: BrokerServer, request: FetchRequest, call: Call, fetched: Fetched) -> _Round:
    pace = Pace(broker, call)
    round_, wanted = _Round(), iter(fetched.items())
    if len(fetched) > PARTITIONS_AT_ONCE or not _read(broker, request, wanted, round_):
        await _read_in_pieces(broker, request, call, round_, list(wanted), pace)
    return round_


async def _answer(
    broker: BrokerServer, call: Call, round_: _Round, session: FetchSession | None, incremental: bool
) -> FetchResponse:
    if len(round_.data) > PARTITIONS_AT_ONCE:
        return await _response_of_many(broker, call, round_, session, incremental)
    return _response(broker, call, round_, session, incremental)


class _Bell:
    """Wakes a fetch when a partition has changed or its time is up. Cheaper than an event with a timeout: every record
    that somebody waits for rings it."""

    __slots__ = ("is_late", "rung")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.rung: asyncio.Future[None] = loop.create_future()
        self.is_late = False

    def ring(self) -> None:
        if not self.rung.done():
            self.rung.set_result(None)

    def time_is_up(self) -> None:
        self.is_late = True
        self.ring()


def _find(broker: BrokerServer, one: FetchedPartition) -> Partition:
    if one.is_denied:
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{one.topic} may not be read")
    if isinstance(one.topic, uuid.UUID):
        return broker.topics.by_topic_id(one.topic).partition(one.partition)
    return broker.topics.partition(one.topic, one.partition)


def _read(
    broker: BrokerServer,
    request: FetchRequest,
    wanted: Iterator[tuple[tuple[TopicName, int], FetchedPartition]],
    round_: _Round,
    at_once_bytes: int = BYTES_AT_ONCE,
) -> bool:
    """Read these partitions after those that were read before. Returns False if it stopped before the last one."""
    stop_bytes, stop_count = round_.size_bytes + at_once_bytes, len(round_.data) + PARTITIONS_AT_ONCE
    left_bytes = min(request.max_bytes, broker.fetch_max_bytes, broker.unread.answer_bytes) - round_.size_bytes
    isolation = request.isolation_level
    for key, one in wanted:
        data = _PartitionData(partition_index=one.partition, records=b"", aborted_transactions=None)
        try:
            partition = _find(broker, one)
            log = _log_for_rack(partition) if request.rack_id and broker.cluster is not None else partition.log
            if one.current_leader_epoch >= 0:
                check_leader_epoch(log, one.current_leader_epoch)
            first = round_.size_bytes == 0
            limit_bytes = min(one.partition_max_bytes, left_bytes)
            data.log_start_offset = log.log_start_offset
            if one.last_fetched_epoch >= 0 and _diverges(log, one, data):
                round_.failed = True
            elif request.rack_id and broker.cluster is not None and _is_nearer_elsewhere(broker, request, one, data):
                data.high_watermark, data.last_stable_offset = log.high_watermark, log.last_stable_offset
                round_.failed = True
            elif limit_bytes > 0 or first:
                read = log.reader.read(
                    one.fetch_offset, max(0, limit_bytes), isolation, at_least_one=first, at_once_bytes=at_once_bytes
                )
                data.records = read.data
                data.high_watermark = read.high_watermark
                data.last_stable_offset = read.last_stable_offset
                if isolation == 1:
                    data.aborted_transactions = [
                        _Aborted(producer_id=producer_id, first_offset=first_offset)
                        for producer_id, first_offset in read.aborted or ()
                    ]
                size = len(read.data)
                if read.extent is not None:
                    round_.extent = read.extent
                    size = read.extent.size_bytes
                left_bytes -= size
                round_.size_bytes += size
            else:
                data.high_watermark = log.high_watermark
                data.last_stable_offset = log.last_stable_offset
        except Refused as error:
            data.error_code = error.code
            data.high_watermark = -1
            data.log_start_offset = -1
            round_.failed = True
        round_.data.append((key, one, data))
        if round_.extent is not None or round_.size_bytes >= stop_bytes or len(round_.data) >= stop_count:
            return False
    return True


def _log_for_rack(partition: Partition) -> PartitionLog:
    from semel.broker.replication.answers import log_for_reader

    return log_for_reader(partition)


def _is_nearer_elsewhere(
    broker: BrokerServer, request: FetchRequest, one: FetchedPartition, data: FetchResponse.PartitionData
) -> bool:
    """Whether the reader should go to a replica in its own rack (KIP-392). Then the answer says so, and no more."""
    from semel.broker.replication.answers import nearest

    found = nearest(broker, _find(broker, one), request.rack_id, one.fetch_offset)
    if found is None:
        return False
    data.preferred_read_replica = found
    return True


def _diverges(log: PartitionLog, one: FetchedPartition, data: FetchResponse.PartitionData) -> bool:
    """Whether the reader's last batch is not in this log. Then the answer says where the logs part, at once, and
    nothing else: the reader has to cut its own log first (KIP-595)."""
    epoch, end_offset = log.offset_for_leader_epoch(one.last_fetched_epoch)
    if epoch < 0 or one.fetch_offset < log.log_start_offset:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"where epoch {one.last_fetched_epoch} ended is not known here")
    if epoch >= one.last_fetched_epoch and end_offset >= one.fetch_offset:
        return False
    data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    data.high_watermark = log.high_watermark
    data.last_stable_offset = log.last_stable_offset
    return True


def _response(
    broker: BrokerServer, call: Call, round_: _Round, session: FetchSession | None, incremental: bool
) -> FetchResponse:
    if broker.quotas is not None and (wait_ms := broker.quotas.fetch_wait_ms(call, round_.size_bytes)):
        return _nothing_yet(broker, session, incremental, wait_ms)
    broker.metrics.bytes_out += round_.size_bytes
    if call.is_long:
        # Other requests are served before this answer is encoded and written.
        call.connection.reserve(round_.size_bytes)
    topics: dict[TopicName, FetchResponse.FetchableTopicResponse] = {}
    _fill(topics, round_.data, session, incremental)
    response = FetchResponse(session_id=session.session_id if session else 0, responses=list(topics.values()))
    if broker.cluster is not None and round_.failed:
        _hint(broker, call, response)
    return response


def _hint(broker: BrokerServer, call: Call, response: FetchResponse) -> None:
    from semel.broker.replication.answers import hint_fetch

    hint_fetch(broker, call, response)


def _fill(
    topics: dict[TopicName, FetchResponse.FetchableTopicResponse],
    read: _Read,
    session: FetchSession | None,
    incremental: bool,
) -> None:
    """Put what was read into the answer, without partitions of which the client knows everything."""
    for key, one, data in read:
        if session is not None:
            has_data = bool(data.records)
            same = one.high_watermark == data.high_watermark and one.log_start_offset == data.log_start_offset
            same = same and data.diverging_epoch.epoch < 0 and data.preferred_read_replica < 0
            if incremental and not has_data and same and data.error_code == ErrorCode.NONE:
                continue
            # After an error the partition must be in the next answer, even if nothing has changed.
            failed = data.error_code != ErrorCode.NONE
            one.high_watermark = -1 if failed else data.high_watermark
            one.log_start_offset = data.log_start_offset
            if has_data and key in session.partitions:
                session.move_to_back(key)
        topic = topics.get(one.topic)
        if topic is None:
            name = one.topic
            topic = _TopicResponse(topic_id=name) if isinstance(name, uuid.UUID) else _TopicResponse(topic=name)
            topics[name] = topic
        topic.partitions.append(data)


def _nothing_yet(broker: BrokerServer, session: FetchSession | None, incremental: bool, wait_ms: int) -> FetchResponse:
    """An answer without records for a client above its quota. The session stays as it was."""
    if session is not None and not incremental:
        # After such an answer to a full fetch, a client starts a new session.
        broker.fetch_sessions.forget(session)
        session = None
    return FetchResponse(throttle_time_ms=wait_ms, session_id=session.session_id if session else 0)

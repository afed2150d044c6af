"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what changes.

Guarantees:

- A request must carry the session's next epoch. Any other epoch is refused, so that after a lost or repeated request
  client and broker still agree on what is being fetched.
- The number of sessions and of all their partitions is bounded, and no name that a topic cannot have is kept. With a
  full cache a client gets no session: its requests are larger, but correct. A session that was not used for two minutes
  is replaced.
"""

from __future__ import annotations

import uuid
from copy import copy
from typing import TYPE_CHECKING, ClassVar

from semel.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.wire.messages.fetch import FetchRequest

#: The topic's name, or from version 13 on its id.
TopicName = str | uuid.UUID

EVICTION_MS = 120_000
#: All sessions together may hold this many partitions per slot, and at least this many.
PARTITIONS_PER_SLOT = 200
LEAST_PARTITIONS = 10_000
#: No topic has a longer name. A session would keep it, and a request may name very many.
LONGEST_NAME = 249
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
_LAST_EPOCH = 2**31 - 1


class FetchedPartition:
    """One partition of a fetch, and what its client was last told about it."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "high_watermark",
        "last_fetched_epoch",
        "log_start_offset",
        "partition",
        "partition_max_bytes",
        "topic",
    )

    #: Whether the client may not read it. Never in a session: what a client may read can change.
    is_denied: ClassVar[bool] = False

    def __init__(self, topic: TopicName, asked: FetchRequest.FetchPartition) -> None:
        self.topic = topic
        self.partition = asked.partition
        self.high_watermark = -1
        self.log_start_offset = -1
        self.update(asked)

    def update(self, asked: FetchRequest.FetchPartition) -> None:
        """Take over what the client asks for now."""
        self.fetch_offset = asked.fetch_offset
        self.partition_max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch

    def denied(self) -> FetchedPartition:
        """A copy for one request of a client that may not read it."""
        # As after any error, the partition must be in the next answer.
        self.high_watermark = -1
        found = copy(self)
        found.__class__ = _DeniedPartition
        return found


class _DeniedPartition(FetchedPartition):
    """One that the client may not read. A class of its own: where nobody is denied anything, it costs nothing."""

    __slots__ = ()
    is_denied = True


def _has_a_name_too_long(request: FetchRequest) -> bool:
    return any(len(topic.topic) > LONGEST_NAME for topic in request.topics)


#: Partitions in the order they are served.
Fetched = dict[tuple[TopicName, int], FetchedPartition]


class FetchSession:
    """What one client is fetching."""

    __slots__ = ("epoch", "last_used_ms", "partitions", "session_id", "uses_topic_ids")

    def __init__(self, session_id: int, partitions: Fetched, uses_topic_ids: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.partitions = partitions
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.last_used_ms = now_ms

    def move_to_back(self, key: tuple[TopicName, int]) -> None:
        """Read this partition last next time, so that no partition starves behind a full response."""
        self.partitions[key] = self.partitions.pop(key)


class FetchSessions:
    """All sessions of this broker."""

    def __init__(self, slots: int, now_ms: Callable[[], int], draw: Callable[[int, int], int]) -> None:
        self._slots = slots
        self._now_ms = now_ms
        self._draw = draw
        self._most_partitions = max(PARTITIONS_PER_SLOT * slots, LEAST_PARTITIONS)
        #: The least recently used comes first.
        self._sessions: dict[int, FetchSession] = {}
        #: How many partitions all sessions hold.
        self.partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @classmethod
    def partitions_of(cls, request: FetchRequest, version: int) -> Fetched:
        """The partitions that a request names. Uses no shared state, so it may run on a thread."""
        return cls._merge({}, request, version >= 13)

    def begin(
        self, request: FetchRequest, version: int, named: Fetched | None = None
    ) -> tuple[Fetched, FetchSession | None, bool]:
        """What to fetch, the session if there is one, and whether the answer may leave out unchanged partitions.

        `named`: the result of `partitions_of`, if it is known already.
        """
        uses_topic_ids = version >= 13
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id:
                self._drop(request.session_id)
            partitions = self._merge({}, request, uses_topic_ids) if named is None else named
            if (
                request.session_epoch == FINAL_EPOCH
                or version < 7
                or not partitions
                or (not uses_topic_ids and _has_a_name_too_long(request))
            ):
                return partitions, None, False
            return partitions, self._create(partitions, uses_topic_ids), False
        session = self._sessions.get(request.session_id)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {request.session_id}")
        if session.epoch != request.session_epoch:
            raise Refused(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"expected epoch {session.epoch}, got {request.session_epoch}"
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, "a session uses topic names or topic ids, not both")
        if not uses_topic_ids and _has_a_name_too_long(request):
            self._drop(session.session_id)
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "no topic has such a long name")
        named_before = len(session.partitions)
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                session.partitions.pop((topic.topic_id if uses_topic_ids else topic.topic, index), None)
        self._merge(session.partitions, request, uses_topic_ids)
        grown_by = len(session.partitions) - named_before
        self.partition_count += grown_by
        if grown_by > 0 and self.partition_count > self._most_partitions:
            self._drop(session.session_id)
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "all fetch sessions together hold too many partitions")
        session.epoch = 1 if session.epoch == _LAST_EPOCH else session.epoch + 1
        session.last_used_ms = self._now_ms()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        if not session.partitions:
            self._drop(session.session_id)
            return {}, None, False
        return session.partitions, session, True

    def forget(self, session: FetchSession) -> None:
        """End a session that its client was not told about."""
        self._drop(session.session_id)

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.partitions)

    @staticmethod
    def _merge(partitions: Fetched, request: FetchRequest, uses_topic_ids: bool) -> Fetched:
        for topic in request.topics:
            name: TopicName = topic.topic_id if uses_topic_ids else topic.topic
            for asked in topic.partitions:
                known = partitions.get((name, asked.partition))
                if known is None:
                    partitions[name, asked.partition] = FetchedPartition(name, asked)
                else:
                    known.update(asked)
        return partitions

    def _create(self, partitions: Fetched, uses_topic_ids: bool) -> FetchSession | None:
        now_ms = self._now_ms()
        if len(partitions) > self._most_partitions:
            return None
        while len(self._sessions) >= self._slots or self.partition_count + len(partitions) > self._most_partitions:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms < EVICTION_MS:
                return None
            self._drop(oldest.session_id)
        while (session_id := self._draw(1, _LAST_EPOCH)) in self._sessions:
            continue
        session = FetchSession(session_id, partitions, uses_topic_ids, now_ms)
        self._sessions[session_id] = session
        self.partition_count += len(partitions)
        return session

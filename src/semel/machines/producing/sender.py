"""Which batch is sent next, with which sequence, and what its answer means.

Guarantees, per partition, for an idempotent or transactional producer:

- Sequences are given in the order of the records. A batch keeps its sequence and its bytes through every retry.
- While any batch needs a retry, only the oldest unfinished one is sent, so that retries arrive in order (scenario 36).
- The first batch of a producer is sent alone: a partition that does not know a producer takes any sequence of it, so a
  second batch that arrives without the first would be written before it.
- A batch that was dropped with an unknown outcome leaves its sequences *unresolved*: nothing new is sent until the
  others are answered. Unless the answers show that it was written, the epoch changes (KIP-360).
- In a new epoch sequences start at 0, and never while a batch of the old epoch is unfinished (scenario 38).
- If the broker names the records it refuses, at the first attempt, only these fail. The others of the batch are sent
  again, unless they are in a transaction, which is aborted anyway.
- The memory of a batch that was dropped while in flight is freed only when its request has ended (scenario 39).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from semel.errors import ErrorCode, KafkaError, RequestTimedOut, error_for
from semel.machines.producing.accumulator import Accumulator, ProducerBatch
from semel.machines.transactions.producer import NO_IDENTITY, ProducerState, TransactionManager
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.records.sequence import next_sequence

_EPOCH_IN_DOUBT = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
#: With these errors a batch is refused because of single records in it.
_SINGLES = (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)
_MOVED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
)


@dataclass(frozen=True, slots=True)
class Produce:
    """One request: at most one batch per partition, all with the same leader."""

    node_id: int
    batches: tuple[ProducerBatch, ...]


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The broker's answer for one batch."""

    code: ErrorCode
    base_offset: int = -1
    append_time_ms: int = -1
    message: str | None = None
    #: The places of the records for which the batch was refused, if the broker names them.
    refused: tuple[int, ...] = ()


@dataclass(slots=True)
class _Lane:
    """One partition: the batches with a sequence and no final answer, oldest first, and the next sequence."""

    unfinished: list[ProducerBatch] = field(default_factory=list)
    #: How many batches were dropped at their deadline while in flight.
    abandoned: int = 0
    identity: ProducerIdentity | None = None
    next_sequence: int = 0
    acknowledged_up_to: int = 0
    #: The producer id of the last batch that was acknowledged: the partition knows this producer.
    known_id: int = NO_IDENTITY.producer_id
    #: Acknowledged before an older batch was: first sequence -> the one after the last.
    acknowledged: dict[int, int] = field(default_factory=dict)
    #: How many batches got a sequence.
    sent: int = 0
    unresolved: bool = False
    #: The broker lost earlier batches: the unfinished ones from this place on start over in a new epoch.
    restart: bool = False
    restart_from: int = 0

    def begin_sequences(self) -> None:
        """Start at 0 again, with another identity."""
        self.next_sequence = self.acknowledged_up_to = 0
        self.acknowledged.clear()

    def start_over_from(self, place: int) -> None:
        """Nothing from this place on was written. Earlier batches may have been, and are settled first."""
        self.restart_from = min(place, self.restart_from) if self.restart else place
        self.restart = True

    @property
    def may_start_over(self) -> bool:
        return self.restart and all(batch.place >= self.restart_from for batch in self.unfinished)

    @property
    def is_quiet(self) -> bool:
        """Whether no batch of the partition is in flight."""
        return not self.abandoned and not any(batch.on_wire for batch in self.unfinished)

    @property
    def is_idle(self) -> bool:
        return not (self.unfinished or self.abandoned or self.unresolved or self.restart)


@dataclass(slots=True)
class Sender:
    """Decides what to send. The client sends it, and passes every answer back."""

    accumulator: Accumulator
    manager: TransactionManager | None
    max_in_flight: int = 5
    retries: int = 2**31 - 1
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    delivery_timeout_ms: int = 120_000
    #: The partitions whose leader must be looked up before the next batch.
    stale_leaders: set[TopicPartition] = field(default_factory=set)
    _lanes: dict[TopicPartition, _Lane] = field(default_factory=dict)
    #: The lanes that are not idle.
    _busy: dict[TopicPartition, _Lane] = field(default_factory=dict)
    _in_flight: dict[int, int] = field(default_factory=dict)
    _finished: list[ProducerBatch] = field(default_factory=list)

    # --- what to send ---------------------------------------------------------------------------------------------

    def poll(
        self,
        now_ms: int,
        leader: Callable[[TopicPartition], int | None],
        throttled_ms: Callable[[int], int] = lambda node_id: 0,
    ) -> tuple[list[Produce], int | None]:
        """Requests to send now, and when to ask again at the latest (None: when something happens).

        `throttled_ms` says how long a node must not be sent anything. Its batches wait, and grow.
        """
        if not self._busy and self.accumulator.is_empty:
            # Most polls: something else has happened, such as the answer of a coordinator.
            self.stale_leaders.clear()
            return [], None
        self._expire(now_ms)
        self._resolve()
        by_node: dict[int, list[ProducerBatch]] = {}
        sizes: dict[int, int] = {}
        wake_at: int | None = None
        active = self._active()
        if self.stale_leaders:
            self.stale_leaders.intersection_update(active)  # do not look for a deleted topic for ever
        for partition in active:
            at = self._sendable_at_ms(partition)
            if at is None:
                continue
            if at > now_ms:
                wake_at = at if wake_at is None else min(wake_at, at)
                continue
            node_id = leader(partition)
            if node_id is None or partition in self.stale_leaders:
                self.stale_leaders.add(partition)
                continue
            if self._in_flight.get(node_id, 0) >= self.max_in_flight:
                continue
            if node_id not in by_node and (wait_ms := throttled_ms(node_id)):
                wake_at = now_ms + wait_ms if wake_at is None else min(wake_at, now_ms + wait_ms)
                continue
            size = self._size_of_next(partition)
            if by_node.get(node_id) and sizes[node_id] + size > self.accumulator.max_request_bytes:
                if self._in_flight.get(node_id, 0) + 1 < self.max_in_flight:
                    wake_at = now_ms  # it is sent with the next request
                continue
            batch = self._take(partition)
            by_node.setdefault(node_id, []).append(batch)
            sizes[node_id] = sizes.get(node_id, 0) + size
        for node_id, batches in by_node.items():
            self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
            if self._in_flight[node_id] < self.max_in_flight:
                # A request takes one batch per partition. The next one need not wait for the answer.
                following = [at for batch in batches if (at := self._sendable_at_ms(batch.partition)) is not None]
                wake_at = min([*following, *([] if wake_at is None else [wake_at])], default=None)
        requests = [Produce(node_id, tuple(batches)) for node_id, batches in by_node.items()]
        deadline = self._next_deadline_ms()
        if deadline is not None:
            wake_at = deadline if wake_at is None else min(wake_at, deadline)
        return requests, wake_at

    def _active(self) -> list[TopicPartition]:
        """The partitions with work, those with retries first."""
        for partition in [p for p, lane in self._busy.items() if lane.is_idle]:
            del self._busy[partition]
        return list(self._busy) + [p for p in self.accumulator.partitions() if p not in self._busy]

    def _sendable_at_ms(self, partition: TopicPartition) -> int | None:
        """When the partition's next batch may be sent; None while that depends on an answer."""
        lane = self._lanes.get(partition)
        if lane is not None and any(not batch.on_wire for batch in lane.unfinished):
            # A batch needs a retry: only the oldest is sent, if it is not in flight.
            oldest = lane.unfinished[0]
            return None if oldest.on_wire or lane.may_start_over else oldest.not_before_ms
        if self.manager is not None:
            if not self.manager.may_send_to(partition):
                return None
            if lane is not None:
                if lane.unresolved or lane.restart:
                    return None
                if lane.identity != self.manager.identity and (lane.unfinished or lane.abandoned):
                    return None
                if lane.unfinished and lane.known_id != self.manager.identity.producer_id:
                    return None
        if lane is not None and lane.unfinished:
            # The broker detects duplicates among the last five batches: do not send one that would push the oldest out.
            if lane.sent - lane.unfinished[0].place >= self.max_in_flight:
                return None
        return self.accumulator.ready_at_ms(partition)

    def _size_of_next(self, partition: TopicPartition) -> int:
        lane = self._lanes.get(partition)
        if lane is not None and lane.unfinished and not lane.unfinished[0].on_wire:
            return len(lane.unfinished[0].data or b"")
        return self.accumulator.waiting[partition][0].size_bytes

    def _take(self, partition: TopicPartition) -> ProducerBatch:
        lane = self._lanes.setdefault(partition, _Lane())
        self._busy[partition] = lane
        if lane.unfinished and not lane.unfinished[0].on_wire:
            batch = lane.unfinished[0]
        else:
            batch = self.accumulator.take(partition)
            batch.place = lane.sent
            lane.sent += 1
            lane.unfinished.append(batch)
            self._stamp(lane, batch)
        batch.on_wire = True
        batch.attempts += 1
        return batch

    def _stamp(self, lane: _Lane, batch: ProducerBatch) -> None:
        if self.manager is None:
            batch.stamp(None, -1, False)
            return
        if lane.identity != self.manager.identity:
            lane.identity = self.manager.identity
            lane.begin_sequences()
        batch.stamp(lane.identity, lane.next_sequence, self.manager.is_transactional)
        lane.next_sequence = next_sequence(lane.next_sequence, batch.record_count)

    # --- answers --------------------------------------------------------------------------------------------------

    def on_answers(self, request: Produce, answers: Iterable[BatchAnswer], now_ms: int) -> None:
        """Take a response, with one answer per batch of the request."""
        self._request_ended(request)
        for batch, answer in zip(request.batches, answers, strict=True):
            self._on_answer(batch, answer, now_ms)

    def on_no_answer(self, request: Produce, code: ErrorCode, now_ms: int) -> None:
        """The connection was lost, or no answer came. Whether anything was written is unknown."""
        self._request_ended(request)
        for batch in request.batches:
            self._on_answer(batch, BatchAnswer(code), now_ms)

    def on_stop(self, request: Produce) -> None:
        """The connection is closed because the producer ends: this request is no longer in flight."""
        self._request_ended(request)
        for batch in request.batches:
            if batch.done:
                self._free_dropped(batch)

    def finished(self) -> list[ProducerBatch]:
        """Return the batches that are done since the last call."""
        finished, self._finished = self._finished, []
        return finished

    @property
    def busy(self) -> bool:
        """Whether any batch was sent and has no final answer."""
        return any(lane.unfinished or lane.abandoned for lane in self._busy.values())

    def unfinished_batches(self) -> list[ProducerBatch]:
        """The batches that were sent and have no final answer. For a half, the batch it was split from."""
        found = []
        for lane in self._busy.values():
            for batch in lane.unfinished:
                while batch.parent is not None:
                    batch = batch.parent
                found.append(batch)
        return found

    def give_up(self, error: KafkaError, *, sent_too: bool, topic: str | None = None) -> None:
        """Fail every batch that waits, of one topic or of all. With `sent_too` also those that were sent."""
        for partition in self.accumulator.partitions():
            while topic in (None, partition.topic) and self.accumulator.waiting.get(partition):
                self._finish(self.accumulator.take(partition), BatchAnswer(error.code), error)
        if not sent_too:
            return
        for partition, lane in self._busy.items():
            for batch in list(lane.unfinished) if topic in (None, partition.topic) else ():
                self._drop(lane, batch, error)

    def _request_ended(self, request: Produce) -> None:
        self._in_flight[request.node_id] -= 1
        for batch in request.batches:
            batch.on_wire = False

    def _on_answer(self, batch: ProducerBatch, answer: BatchAnswer, now_ms: int) -> None:
        lane = self._lanes[batch.partition]
        if batch.done:  # dropped while in flight; its memory is freed only now
            self._free_dropped(batch)
            if answer.code is ErrorCode.NONE:
                self._acknowledge(lane, batch)
        elif answer.code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            if lane.restart:
                self._give_up_overtaken(lane, batch)
            lane.unfinished.remove(batch)
            self._acknowledge(lane, batch)
            self._finish(batch, answer, None)
        elif answer.code is ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1:
            self._split(lane, batch)
        elif self._can_split_off_refused(lane, batch, answer):
            self._split_off_refused(lane, batch, answer)
        else:
            self._on_failure(lane, batch, answer, now_ms)

    def _free_dropped(self, batch: ProducerBatch) -> None:
        """Free a batch that was dropped while in flight."""
        self._lanes[batch.partition].abandoned -= 1
        self.accumulator.release(batch)
        batch.data = None

    def _on_failure(self, lane: _Lane, batch: ProducerBatch, answer: BatchAnswer, now_ms: int) -> None:
        code = answer.code
        error = error_for(code, f"{batch.partition}: {answer.message or code.meaning}")
        if code in _MOVED:
            self.stale_leaders.add(batch.partition)
        if self._may_retry(lane, batch, code):
            pause = min(self.retry_backoff_max_ms, self.retry_backoff_ms * 2 ** min(batch.attempts - 1, 20))
            batch.not_before_ms = now_ms + pause
            batch.last_refusal = f"{code.name}, {answer.message or code.meaning}"
            return
        transactional = self.manager is not None and self.manager.is_transactional
        if code in _EPOCH_IN_DOUBT and self.manager is not None and not transactional and not lane.unresolved:
            lane.start_over_from(batch.place)
            return
        lane.unfinished.remove(batch)
        hole = self.manager is not None and not self._take_back(lane, batch)
        if hole:
            # A refused batch was not written, and nothing after it was: these may start over.
            if transactional or lane.unresolved or code is ErrorCode.UNKNOWN_SERVER_ERROR:
                lane.unresolved = True
            else:
                lane.start_over_from(batch.place)
        self._finish(batch, answer, error)
        if self.manager is not None:
            self.manager.fail(error, renew=hole)

    def _may_retry(self, lane: _Lane, batch: ProducerBatch, code: ErrorCode) -> bool:
        if self.manager is not None and self.manager.state is ProducerState.FATAL_ERROR:
            return False
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # If an earlier batch is unanswered, this only follows from it. Otherwise the broker has lost records.
            return not lane.unresolved and batch.base_sequence != lane.acknowledged_up_to
        return code.retriable and batch.attempts <= self.retries

    def _take_back(self, lane: _Lane, batch: ProducerBatch) -> bool:
        """Reuse the sequences of a refused batch, if no later batch depends on them."""
        newest = next_sequence(batch.base_sequence, batch.record_count) == lane.next_sequence
        if newest and not lane.unresolved and batch.attempts == 1 and lane.identity == batch.identity:
            lane.next_sequence = batch.base_sequence
            return True
        return False

    def _acknowledge(self, lane: _Lane, batch: ProducerBatch) -> None:
        if self.manager is not None and lane.identity == batch.identity:
            lane.known_id = self.manager.identity.producer_id
            lane.acknowledged[batch.base_sequence] = next_sequence(batch.base_sequence, batch.record_count)
            while lane.acknowledged_up_to in lane.acknowledged:
                lane.acknowledged_up_to = lane.acknowledged.pop(lane.acknowledged_up_to)

    def _split(self, lane: _Lane, batch: ProducerBatch) -> None:
        """The batch is too large for its topic: two halves replace it, with the same sequences."""
        at = lane.unfinished.index(batch)
        halves = batch.split()
        self.accumulator.release(batch)
        sequence = batch.base_sequence
        for half in halves:
            self.accumulator.used_bytes += half.size_bytes
            half.place = batch.place
            half.stamp(batch.identity, sequence, self.manager is not None and self.manager.is_transactional)
            if self.manager is not None:
                sequence = next_sequence(sequence, half.record_count)
        lane.unfinished[at : at + 1] = halves

    def _can_split_off_refused(self, lane: _Lane, batch: ProducerBatch, answer: BatchAnswer) -> bool:
        """Whether only the refused records fail.

        Only at the first attempt: a broker checks records before it looks for duplicates, so a batch that it refuses
        later may have been written before.
        """
        if answer.code not in _SINGLES or batch.attempts > 1 or lane.unresolved:
            return False
        if self.manager is not None and self.manager.is_transactional:
            return False
        places = set(answer.refused)
        return 0 < len(places) < batch.record_count and places <= set(range(batch.record_count))

    def _split_off_refused(self, lane: _Lane, batch: ProducerBatch, answer: BatchAnswer) -> None:
        """Nothing of the batch was written: the good records replace it, the refused ones fail."""
        good, bad = batch.split(set(answer.refused))
        self.accumulator.release(batch)
        self.accumulator.used_bytes += good.size_bytes + bad.size_bytes
        good.place = batch.place
        good.stamp(batch.identity, batch.base_sequence, False)
        lane.unfinished[lane.unfinished.index(batch)] = good
        if self.manager is not None:
            if self._take_back(lane, batch):
                lane.next_sequence = next_sequence(batch.base_sequence, good.record_count)
            else:
                lane.start_over_from(batch.place)  # later batches have sequences that follow the whole batch
        why = f"{batch.partition}: {answer.message or answer.code.meaning}"
        self._finish(bad, answer, error_for(answer.code, why))

    def _give_up_overtaken(self, lane: _Lane, written: ProducerBatch) -> None:
        """A later batch was written before the rest of a refused one: the broker did not know the producer.

        The rest would be written out of order, so it fails.
        """
        for batch in lane.unfinished[: lane.unfinished.index(written)]:
            if batch.attempts == 0:
                lane.unfinished.remove(batch)
                why = f"{batch.partition}: another record of its batch was refused, and what came after is written"
                self._finish(batch, BatchAnswer(ErrorCode.INVALID_RECORD), error_for(ErrorCode.INVALID_RECORD, why))

    def _finish(self, batch: ProducerBatch, answer: BatchAnswer, error: KafkaError | None) -> None:
        if not batch.on_wire:
            self.accumulator.release(batch)
        known = batch.finish(answer.base_offset, answer.append_time_ms, error)
        if known is not None:
            self._finished.append(known)

    # --- deadlines and epochs -------------------------------------------------------------------------------------

    def _next_deadline_ms(self) -> int | None:
        oldest = [queue[0].created_ms for queue in self.accumulator.waiting.values() if queue]
        oldest += [lane.unfinished[0].created_ms for lane in self._busy.values() if lane.unfinished]
        return min(oldest) + self.delivery_timeout_ms if oldest else None

    def _expire(self, now_ms: int) -> None:
        for partition, queue in list(self.accumulator.waiting.items()):
            while queue and queue[0].created_ms + self.delivery_timeout_ms <= now_ms:
                batch = self.accumulator.take(partition)
                self._finish(batch, BatchAnswer(ErrorCode.REQUEST_TIMED_OUT), self._timeout_of(batch))
                if self.manager is not None and self.manager.is_transactional:
                    self.manager.fail(self._timeout_of(batch))
        for lane in self._busy.values():
            for batch in [b for b in lane.unfinished if b.created_ms + self.delivery_timeout_ms <= now_ms]:
                self._drop(lane, batch, self._timeout_of(batch))
                if self.manager is not None and self.manager.is_transactional:
                    self.manager.fail(self._timeout_of(batch), renew=True)

    def _drop(self, lane: _Lane, batch: ProducerBatch, error: KafkaError) -> None:
        """Drop a sent batch without knowing whether it was written."""
        lane.unfinished.remove(batch)
        lane.unresolved = self.manager is not None
        if batch.on_wire:
            lane.abandoned += 1
        self._finish(batch, BatchAnswer(error.code), error)

    def _timeout_of(self, batch: ProducerBatch) -> RequestTimedOut:
        records = "1 record" if batch.record_count == 1 else f"{batch.record_count} records"
        attempts = "1 attempt" if batch.attempts == 1 else f"{batch.attempts} attempts"
        why = f"; the last answer: {batch.last_refusal}" if batch.last_refusal else ""
        return RequestTimedOut(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{records} for {batch.partition} not acknowledged within "
            f"delivery.timeout.ms={self.delivery_timeout_ms} ({attempts}{why})",
        )

    def _resolve(self) -> None:
        """Settle the partitions with uncertain sequences, once none of their batches is in flight."""
        manager = self.manager
        if manager is None:
            return
        doubtful = [lane for lane in self._busy.values() if (lane.unresolved or lane.restart) and lane.is_quiet]
        for lane in doubtful:
            if lane.unresolved and not lane.unfinished and lane.acknowledged_up_to == lane.next_sequence:
                lane.unresolved = False
        doubtful = [lane for lane in doubtful if lane.may_start_over or (lane.unresolved and not lane.unfinished)]
        if not manager.is_transactional and any(lane.identity == manager.identity for lane in doubtful):
            manager.bump_epoch()
        if manager.identity == NO_IDENTITY:
            return
        for lane in doubtful:
            if lane.identity != manager.identity:
                self._start_over(lane, manager)

    def _start_over(self, lane: _Lane, manager: TransactionManager) -> None:
        """Start at sequence 0 in the new epoch, with the unfinished batches: the broker has none of them."""
        lane.restart = lane.unresolved = False
        lane.identity = manager.identity
        lane.begin_sequences()
        for batch in lane.unfinished:
            batch.stamp(lane.identity, lane.next_sequence, manager.is_transactional)
            lane.next_sequence = next_sequence(lane.next_sequence, batch.record_count)

"""Order and exactly-once through every retry: named scenarios, and a model broker under random faults."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.errors import ErrorCode, OutOfOrderSequence, RecordTooLarge, RequestTimedOut
from semel.machines.producing.accumulator import Accumulator, ProducerBatch, with_producer
from semel.machines.producing.sender import BatchAnswer, Produce, Sender, _Lane
from semel.machines.transactions.producer import MAX_EPOCH, ProducerState, TransactionManager
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.records.batch import Batch, build, check, read_records
from semel.records.sequence import next_sequence

P0, P1 = TopicPartition("ledger", 0), TopicPartition("ledger", 1)
OK = BatchAnswer(ErrorCode.NONE, base_offset=0)


def idempotent(producer_epoch: int = 0) -> TransactionManager:
    return TransactionManager(None, state=ProducerState.READY, identity=ProducerIdentity(7, producer_epoch))


def in_transaction(*partitions: TopicPartition) -> TransactionManager:
    manager = TransactionManager("payments", state=ProducerState.READY, identity=ProducerIdentity(7, 0))
    manager.begin()
    for partition in partitions:
        manager.write(partition)
    return manager


def make(manager: TransactionManager | None, **limits: int) -> Sender:
    sizes = {name: limits.pop(name) for name in ("batch_size_bytes", "buffer_memory_bytes") if name in limits}
    # One record fills a batch unless a test says otherwise, and nothing lingers.
    accumulator = Accumulator(**{"batch_size_bytes": 1, "linger_ms": 0, **sizes})
    return Sender(accumulator, manager, **limits)


def known(sender: Sender) -> Sender:
    """The partition knows the producer, so that several batches may be in flight at once."""
    assert sender.manager is not None
    sender._lanes[P0] = _Lane(known_id=sender.manager.identity.producer_id)
    return sender


def put(sender: Sender, value: bytes, partition: TopicPartition = P0, now_ms: int = 0) -> ProducerBatch:
    appended = sender.accumulator.append(partition, None, value, (), now_ms, now_ms)
    assert appended is not None
    return appended[0]


def poll(sender: Sender, now_ms: int = 0) -> list[Produce]:
    return sender.poll(now_ms, lambda partition: 1)[0]


def values(request: Produce) -> list[bytes | None]:
    return [record.value for batch in request.batches for record in read_records(Batch.parse(batch.data or b""))]


def sequences(request: Produce) -> list[int]:
    return [Batch.parse(batch.data or b"").base_sequence for batch in request.batches]


def test_five_requests_are_in_flight_and_no_more() -> None:
    sender = known(make(idempotent()))
    for number in range(7):
        put(sender, b"%d" % number)
    sent = [poll(sender) for _ in range(6)]
    assert [values(r[0]) for r in sent[:5]] == [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"]]
    assert sent[5] == []
    sender.on_answers(sent[0][0], [OK], 0)
    assert values(poll(sender)[0]) == [b"5"]


def test_the_first_batch_of_a_producer_is_sent_alone() -> None:
    """A partition that does not know a producer takes any sequence, so the second might be written before the first."""
    sender = make(idempotent())
    for number in range(3):
        put(sender, b"%d" % number)
    put(sender, b"elsewhere", P1)
    first = poll(sender)[0]
    assert values(first) == [b"0", b"elsewhere"]
    assert poll(sender) == []
    sender.on_no_answer(first, ErrorCode.NETWORK_EXCEPTION, 0)
    sender.stale_leaders.clear()
    again = poll(sender, 100)[0]
    assert values(again) == [b"0", b"elsewhere"]
    assert poll(sender, 100) == []
    sender.on_answers(again, [OK, OK], 100)
    assert [values(poll(sender, 100)[0]) for _ in range(2)] == [[b"1"], [b"2"]]


def test_a_new_leader_does_not_raise_the_limit_of_a_partition() -> None:
    sender = known(make(idempotent()))
    for number in range(7):
        put(sender, b"%d" % number)
    sent = [poll(sender)[0] for _ in range(5)]
    assert sender.poll(0, lambda partition: 2)[0] == [], "a broker remembers five batches, wherever they were sent"
    sender.on_answers(sent[0], [OK], 0)
    (request,), _ = sender.poll(0, lambda partition: 2)
    assert (request.node_id, values(request)) == (2, [b"5"])


def test_scenario_36_when_the_first_fails_the_rest_is_retried_in_order_without_a_bump_or_a_duplicate() -> None:
    manager = idempotent()
    sender = known(make(manager))
    batches = [put(sender, b"%d" % number) for number in range(5)]
    sent = [poll(sender)[0] for _ in batches]
    sender.on_answers(sent[0], [BatchAnswer(ErrorCode.NOT_ENOUGH_REPLICAS)], 0)
    for request in sent[1:]:
        sender.on_answers(request, [BatchAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)], 0)
    assert poll(sender, 99) == [], "not before the backoff"
    written = []
    for now_ms in range(100, 2_000, 100):
        for request in poll(sender, now_ms):
            assert len(poll(sender, now_ms)) == 0, "retries go one at a time"
            written += values(request)
            sender.on_answers(request, [OK], now_ms)
    assert written == [b"0", b"1", b"2", b"3", b"4"]
    assert manager.identity == ProducerIdentity(7, 0)
    assert all(batch.done and batch.error is None for batch in batches)


def test_scenario_37_a_retried_batch_is_byte_identical() -> None:
    sender = make(idempotent())
    put(sender, b"once")
    first = poll(sender)[0]
    data = first.batches[0].data
    sender.on_no_answer(first, ErrorCode.NETWORK_EXCEPTION, 0)
    sender.stale_leaders.clear()
    second = poll(sender, 100)[0]
    assert second.batches[0].data is data
    check(Batch.parse(data or b""))


def test_scenario_38_an_epoch_bump_resets_idle_partitions_and_keeps_order_in_busy_ones() -> None:
    manager = idempotent()
    sender = make(manager)
    put(sender, b"idle", P1)
    sender.on_answers(poll(sender)[0], [OK], 0)
    put(sender, b"busy 0", P1)
    busy = poll(sender)[0]
    put(sender, b"lost", P0)
    sender.on_answers(poll(sender)[0], [BatchAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)], 0)
    restarted = poll(sender)[0]
    assert manager.identity == ProducerIdentity(7, 1)
    assert (values(restarted), sequences(restarted)) == ([b"lost"], [0])
    sender.on_answers(restarted, [OK], 0)
    put(sender, b"busy 1", P1)
    assert poll(sender) == [], "a batch of the old epoch is on its way: nothing overtakes it under the new one"
    sender.on_answers(busy, [OK], 0)
    after = poll(sender)[0]
    assert (values(after), sequences(after)) == ([b"busy 1"], [0])
    assert Batch.parse(after.batches[0].data or b"").producer_epoch == 1


def test_a_batch_that_was_refused_until_its_time_was_over_says_why() -> None:
    """Too few replicas are in sync: that is what somebody has to look at, and not slow brokers."""
    sender = make(idempotent(), delivery_timeout_ms=1_000)
    batch = put(sender, b"kept back")
    for now_ms in (0, 500):
        sender.on_answers(poll(sender, now_ms)[0], [BatchAnswer(ErrorCode.NOT_ENOUGH_REPLICAS)], now_ms)
    poll(sender, 1_000)
    assert isinstance(batch.error, RequestTimedOut)
    assert "1 record for ledger-0 not acknowledged within delivery.timeout.ms=1000 (2 attempts; the last answer: " \
        "NOT_ENOUGH_REPLICAS, too few replicas are in sync; nothing was written)" in str(batch.error)


def test_scenario_39_memory_of_a_batch_given_up_on_its_way_is_held_until_the_connection_lets_go() -> None:
    sender = make(idempotent(), delivery_timeout_ms=1_000)
    batch = put(sender, b"slow")
    data = b""
    request = poll(sender)[0]
    data, used = request.batches[0].data or b"", sender.accumulator.used_bytes
    poll(sender, 1_000)
    assert isinstance(batch.error, RequestTimedOut)
    assert sender.accumulator.used_bytes == used
    assert request.batches[0].data is data
    check(Batch.parse(data))
    sender.on_no_answer(request, ErrorCode.NETWORK_EXCEPTION, 1_001)
    assert sender.accumulator.used_bytes == 0


def test_unresolved_sequences_hold_new_batches_back_until_the_epoch_changed() -> None:
    manager = idempotent()
    sender = make(manager, delivery_timeout_ms=1_000)
    put(sender, b"unknown", now_ms=0)
    request = poll(sender, 0)[0]
    put(sender, b"next", now_ms=900)
    poll(sender, 1_000)
    assert poll(sender, 1_000) == []
    sender.on_no_answer(request, ErrorCode.NETWORK_EXCEPTION, 1_001)
    sender.stale_leaders.clear()
    after = poll(sender, 1_100)[0]
    assert (values(after), sequences(after)) == ([b"next"], [0])
    assert manager.identity == ProducerIdentity(7, 1)


def test_a_late_acknowledgement_resolves_the_sequences_without_a_new_epoch() -> None:
    manager = idempotent()
    sender = make(manager, delivery_timeout_ms=1_000)
    put(sender, b"slow", now_ms=0)
    request = poll(sender, 0)[0]
    put(sender, b"next", now_ms=900)
    poll(sender, 1_000)
    sender.on_answers(request, [OK], 1_001)
    after = poll(sender, 1_001)[0]
    assert (values(after), sequences(after)) == ([b"next"], [1])
    assert manager.identity == ProducerIdentity(7, 0)


def test_a_refused_record_does_not_drag_down_what_was_sent_after_it() -> None:
    manager = idempotent()
    sender = known(make(manager))
    bad, good = put(sender, b"bad"), put(sender, b"good")
    first, second = poll(sender)[0], poll(sender)[0]
    sender.on_answers(first, [BatchAnswer(ErrorCode.INVALID_RECORD)], 0)
    sender.on_answers(second, [BatchAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)], 0)
    again = poll(sender, 1_000)[0]
    assert (values(again), sequences(again)) == ([b"good"], [0])
    sender.on_answers(again, [OK], 1_000)
    assert bad.error is not None
    assert good.error is None


def test_a_lost_prefix_in_a_transaction_makes_it_abortable() -> None:
    manager = in_transaction(P0)
    sender = make(manager)
    batch = put(sender, b"debit")
    sender.on_answers(poll(sender)[0], [BatchAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)], 0)
    assert isinstance(batch.error, OutOfOrderSequence)
    assert manager.state is ProducerState.ABORTABLE_ERROR


def test_under_v1_nothing_goes_to_a_partition_that_was_not_announced() -> None:
    manager = TransactionManager("payments", version=1, state=ProducerState.READY, identity=ProducerIdentity(7, 0))
    manager.begin()
    manager.write(P0)
    sender = make(manager)
    put(sender, b"debit")
    assert poll(sender) == []


def test_the_next_transaction_starts_at_sequence_zero_under_the_epoch_the_commit_gave() -> None:
    manager = in_transaction(P0)
    sender = make(manager)
    put(sender, b"first")
    sender.on_answers(poll(sender)[0], [OK], 0)
    manager.identity = ProducerIdentity(7, 1)
    put(sender, b"second")
    request = poll(sender)[0]
    assert sequences(request) == [0]
    batch = Batch.parse(request.batches[0].data or b"")
    assert (batch.producer_epoch, batch.is_transactional) == (1, True)


def test_a_batch_too_large_for_its_topic_is_sent_in_halves_with_its_own_sequences() -> None:
    sender = make(idempotent(), batch_size_bytes=10_000)
    places = [sender.accumulator.append(P0, None, b"%d" % number, (), 5, 0) for number in range(5)]
    sender.accumulator.close_all()
    batch = places[0][0]  # type: ignore[index]
    request = poll(sender)[0]
    sender.on_answers(request, [BatchAnswer(ErrorCode.MESSAGE_TOO_LARGE)], 0)
    first = poll(sender)[0]
    assert (values(first), sequences(first)) == ([b"0", b"1"], [0])
    sender.on_answers(first, [BatchAnswer(ErrorCode.NONE, base_offset=40)], 0)
    assert not batch.done
    second = poll(sender)[0]
    assert (values(second), sequences(second)) == ([b"2", b"3", b"4"], [2])
    sender.on_answers(second, [BatchAnswer(ErrorCode.NONE, base_offset=42)], 0)
    assert [batch.outcome(number)[0] for number in range(5)] == [40, 41, 42, 43, 44]
    assert sender.finished() == [batch]
    assert sender.accumulator.used_bytes == 0


def test_a_leader_that_moved_is_looked_up_before_the_retry() -> None:
    sender = make(idempotent())
    put(sender, b"x")
    sender.on_answers(poll(sender)[0], [BatchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER)], 0)
    assert sender.stale_leaders == {P0}
    assert poll(sender, 5_000) == []
    sender.stale_leaders.clear()
    assert len(poll(sender, 5_000)) == 1


def test_a_leader_that_nobody_needs_any_more_is_not_looked_for_for_ever() -> None:
    sender = make(idempotent(), delivery_timeout_ms=1_000)
    put(sender, b"x")
    assert sender.poll(0, lambda partition: None)[0] == []
    assert sender.stale_leaders == {P0}
    sender.poll(1_000, lambda partition: None)
    assert sender.stale_leaders == set(), "its last batch was given up: the topic may be gone for good"


def test_what_did_not_fit_into_a_request_follows_at_once() -> None:
    sender = make(idempotent(), max_in_flight=2)
    sender.accumulator.max_request_bytes = 200
    put(sender, b"x" * 80, P0)
    put(sender, b"y" * 80, P1)
    requests, wake_at = sender.poll(0, lambda partition: 1)
    assert [len(request.batches) for request in requests] == [1]
    assert wake_at == 0
    assert len(poll(sender)) == 1


def test_giving_up_on_a_topic_leaves_the_others_alone() -> None:
    sender = make(idempotent())
    other = TopicPartition("other", 0)
    lost, kept = put(sender, b"x"), put(sender, b"y", other)
    sender.give_up(RequestTimedOut(ErrorCode.REQUEST_TIMED_OUT, "gone"), sent_too=True, topic="ledger")
    assert lost.done
    assert not kept.done


def test_without_idempotence_batches_carry_no_identity() -> None:
    sender = make(None, retries=1)
    batch = put(sender, b"plain")
    request = poll(sender)[0]
    assert Batch.parse(request.batches[0].data or b"").producer_id == -1
    sender.on_answers(request, [BatchAnswer(ErrorCode.NOT_ENOUGH_REPLICAS)], 0)
    sender.on_answers(poll(sender, 1_000)[0], [BatchAnswer(ErrorCode.NOT_ENOUGH_REPLICAS)], 1_000)
    assert batch.error is not None, "retries=1 allows one"


def test_the_buffer_is_bounded_and_a_full_one_sends_at_once() -> None:
    sender = make(idempotent(), batch_size_bytes=300, buffer_memory_bytes=400)
    sender.accumulator.linger_ms = 10_000
    put(sender, b"x" * 150)
    assert sender.accumulator.append(P1, None, b"y" * 300, (), 0, 0) is None
    assert len(poll(sender)) == 1, "no lingering while somebody waits for memory"


def test_a_record_larger_than_any_request_is_refused_at_once() -> None:
    accumulator = Accumulator(max_request_bytes=1_000)
    with pytest.raises(RecordTooLarge, match=r"max\.request\.size"):
        accumulator.append(P0, None, b"x" * 1_000, (), 0, 0)


def test_a_batch_lingers_until_its_time_or_until_it_is_full() -> None:
    accumulator = Accumulator(batch_size_bytes=200, linger_ms=5)
    accumulator.append(P0, b"k", b"v", (), 100, 100)
    assert accumulator.ready_at_ms(P0) == 105
    accumulator.append(P0, b"k", b"v" * 150, (), 100, 100)
    assert accumulator.ready_at_ms(P0) == 0, "the first batch closed because the second record did not fit"
    assert accumulator.take(P0).record_count == 1


def test_restamping_changes_the_identity_and_nothing_else() -> None:
    data = build([(b"k", b"v", [("h", b"1")])], timestamp_ms=3, producer_id=1, producer_epoch=2, base_sequence=3)
    other = Batch.parse(with_producer(data, 4, 5, 6, True))
    check(other)
    assert (other.producer_id, other.producer_epoch, other.base_sequence) == (4, 5, 6)
    assert other.is_transactional
    assert list(read_records(other)) == list(read_records(Batch.parse(data)))
    assert with_producer(with_producer(data, 4, 5, 6, True), 1, 2, 3, False) == data


class ModelBroker:
    """One partition as a broker keeps it: last five batches per epoch, gaps refused, duplicates answered."""

    def __init__(self) -> None:
        self.log: list[bytes | None] = []
        self.epoch = -1
        self.next_sequence = 0
        self.recent: deque[tuple[int, int, int]] = deque(maxlen=5)

    def append(self, data: bytes) -> BatchAnswer:
        batch = Batch.parse(data)
        check(batch)
        if batch.producer_epoch < self.epoch:
            return BatchAnswer(ErrorCode.INVALID_PRODUCER_EPOCH)
        if batch.producer_epoch > self.epoch:
            if batch.base_sequence != 0:
                return BatchAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            self.epoch, self.next_sequence = batch.producer_epoch, 0
            self.recent.clear()
        for first, count, offset in self.recent:
            if (first, count) == (batch.base_sequence, batch.record_count):
                return BatchAnswer(ErrorCode.NONE, base_offset=offset)
        if batch.base_sequence != self.next_sequence:
            return BatchAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        offset = len(self.log)
        self.log += [record.value for record in read_records(batch)]
        self.next_sequence = next_sequence(self.next_sequence, batch.record_count)
        self.recent.append((batch.base_sequence, batch.record_count, offset))
        return BatchAnswer(ErrorCode.NONE, base_offset=offset)


Fault = st.sampled_from(["none"] * 4 + ["request lost", "answer lost", "refused for now", "answer late"])


@pytest.mark.timeout(240)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_is_lost_every_record_is_in_the_log_once_and_in_order(data: st.DataObject) -> None:
    """Requests and answers are lost, refused and late, at random, with five in flight; nobody gives up."""
    manager = idempotent()
    sender = make(manager, batch_size_bytes=data.draw(st.sampled_from([1, 120])))
    brokers = {P0: ModelBroker(), P1: ModelBroker()}
    sent: dict[TopicPartition, list[bytes]] = {P0: [], P1: []}
    numbers = itertools.count()
    wire: list[Produce] = []
    late: list[tuple[Produce, list[BatchAnswer]]] = []
    batches: list[ProducerBatch] = []
    for now_ms in range(0, 100_000, 500):
        quiet = now_ms > 20_000
        if not quiet:
            for _ in range(data.draw(st.integers(0, 3))):
                partition = data.draw(st.sampled_from([P0, P1]))
                value = b"%d" % next(numbers)
                batches.append(put(sender, value, partition, now_ms))
                sent[partition].append(value)
        wire += poll(sender, now_ms)
        wire += poll(sender, now_ms)
        for request, answers in late:
            sender.on_answers(request, answers, now_ms)
        late = []
        arrived, wire = wire, []
        for request in arrived:
            fault = "none" if quiet else data.draw(Fault)
            if fault == "request lost":
                sender.on_no_answer(request, ErrorCode.NETWORK_EXCEPTION, now_ms)
                continue
            if fault == "refused for now":
                answers = [BatchAnswer(ErrorCode.NOT_ENOUGH_REPLICAS) for _ in request.batches]
            else:
                answers = [brokers[b.partition].append(b.data or b"") for b in request.batches]
            if fault == "answer lost":
                sender.on_no_answer(request, ErrorCode.REQUEST_TIMED_OUT, now_ms)
            elif fault == "answer late":
                late.append((request, answers))
            else:
                sender.on_answers(request, answers, now_ms)
        sender.stale_leaders.clear()
        if quiet and not sender.busy and sender.accumulator.is_empty and not late:
            break
    assert {partition: broker.log for partition, broker in brokers.items()} == sent
    assert all(batch.done and batch.error is None for batch in batches)
    assert sender.accumulator.used_bytes == 0
    assert manager.identity == ProducerIdentity(7, 0), "nothing here asks for a new epoch"


@pytest.mark.timeout(240)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_when_batches_are_given_up_what_is_in_the_log_is_in_order_and_what_was_acknowledged_is_there(
    data: st.DataObject,
) -> None:
    """As above with deadlines that pass: a record that was given up is in the log once or not at all."""
    manager = idempotent(data.draw(st.sampled_from([0, MAX_EPOCH - 2])))
    sender = make(manager, delivery_timeout_ms=2_000)
    broker = ModelBroker()
    batches: list[tuple[bytes, ProducerBatch]] = []
    numbers = itertools.count()
    held: list[Produce] = []
    for now_ms in range(0, 60_000, 250):
        quiet = now_ms > 10_000
        if manager.state is ProducerState.INITIALIZING:
            # The epochs ran out: a new producer id, of which the partition knows nothing.
            manager.state, manager.identity = (
                ProducerState.READY,
                ProducerIdentity(manager.identity.producer_id + 100, 0),
            )
            broker.epoch, broker.next_sequence = -1, 0
            broker.recent.clear()
        if not quiet and data.draw(st.booleans()):
            value = b"%d" % next(numbers)
            batches.append((value, put(sender, value, P0, now_ms)))
        requests = poll(sender, now_ms)
        for request in requests + (held if quiet or data.draw(st.booleans()) else []):
            late = request in held
            fault = "none" if quiet or late else data.draw(Fault)
            if fault == "answer late":
                held.append(request)
                continue
            if late:
                held.remove(request)
            if fault == "request lost":
                sender.on_no_answer(request, ErrorCode.NETWORK_EXCEPTION, now_ms)
            elif fault == "answer lost":
                broker.append(request.batches[0].data or b"")
                sender.on_no_answer(request, ErrorCode.NETWORK_EXCEPTION, now_ms)
            elif fault == "refused for now":
                sender.on_answers(request, [BatchAnswer(ErrorCode.NOT_ENOUGH_REPLICAS)], now_ms)
            else:
                sender.on_answers(request, [broker.append(request.batches[0].data or b"")], now_ms)
        sender.stale_leaders.clear()
    assert broker.log == sorted(broker.log, key=lambda value: int(value or b"0")), "order"
    assert len(broker.log) == len(set(broker.log)), "once"
    assert all(batch.done for _, batch in batches)
    assert {value for value, batch in batches if batch.error is None} <= set(broker.log)
    assert sender.accumulator.used_bytes == 0


# --- what a record that cannot be written leaves behind ---------------------------------------------------------------


class Poison(str):
    """A header's name that nobody could foresee: it cannot be encoded."""

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        raise ZeroDivisionError


@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_record_that_cannot_be_written_leaves_no_trace(others: int) -> None:
    sender = make(idempotent(), batch_size_bytes=1_000)
    for number in range(others):
        put(sender, b"%d" % number)
    before = (sender.accumulator.used_bytes, list(sender.accumulator.partitions()))
    with pytest.raises(ZeroDivisionError):
        sender.accumulator.append(P0, None, b"x", [(Poison("h"), b"1")], 10**6, 0)
    with pytest.raises(ZeroDivisionError):  # too large for the batch that is open
        sender.accumulator.append(P0, None, b"x" * 2_000, [(Poison("h"), b"1")], 10**6, 0)
    assert (sender.accumulator.used_bytes, list(sender.accumulator.partitions())) == before
    batch = put(sender, b"good")
    assert batch.record_count == others + 1
    request = poll(sender)[0]
    assert values(request) == [*(b"%d" % number for number in range(others)), b"good"]
    assert Batch.parse(batch.data or b"").max_timestamp == 0
    sender.on_answers(request, [OK], 0)
    assert sender.accumulator.used_bytes == 0


def test_a_record_too_large_for_any_request_does_not_close_the_batch_before_it() -> None:
    sender = make(idempotent(), batch_size_bytes=10_000)
    batch = put(sender, b"small")
    with pytest.raises(RecordTooLarge):
        put(sender, b"x" * 2_000_000)
    assert put(sender, b"small too") is batch


def test_a_finished_batch_lets_go_of_its_bytes() -> None:
    sender = make(idempotent(), batch_size_bytes=10_000)
    kept = []
    for answer in (OK, BatchAnswer(ErrorCode.INVALID_RECORD)):
        kept.append(put(sender, b"x" * 5_000))
        sender.on_answers(poll(sender)[0], [answer], 0)
    assert [(batch.done, batch.data, batch.builder) for batch in kept] == [(True, None, None)] * 2


def test_the_halves_of_a_batch_and_the_whole_let_go_of_their_bytes() -> None:
    sender = make(idempotent(), batch_size_bytes=10_000)
    whole = put(sender, b"1")
    put(sender, b"2")
    sender.on_answers(poll(sender)[0], [BatchAnswer(ErrorCode.MESSAGE_TOO_LARGE)], 0)
    assert whole.data is None
    assert whole.halves is not None
    for number in (0, 1):
        sender.on_answers(poll(sender)[0], [BatchAnswer(ErrorCode.NONE, number)], 0)
    assert [half.data for half in whole.halves] == [None, None]
    assert [whole.outcome(position)[0] for position in (0, 1)] == [0, 1]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_batch_given_up_on_its_way_lets_go_of_its_bytes_with_its_connection(stopped: bool) -> None:
    sender = make(idempotent(), delivery_timeout_ms=100)
    batch = put(sender, b"x")
    request = poll(sender)[0]
    poll(sender, now_ms=1_000)
    assert batch.done
    assert batch.data is not None
    if stopped:
        sender.on_stop(request)
    else:
        sender.on_no_answer(request, ErrorCode.NETWORK_EXCEPTION, 1_000)
    assert batch.data is None
    assert sender.accumulator.used_bytes == 0


def refused(*places: int) -> BatchAnswer:
    return BatchAnswer(ErrorCode.INVALID_TIMESTAMP, message="too far in the future", refused=places)


@pytest.mark.parametrize("manager", [None, idempotent()], ids=["plain", "idempotent"])
def test_a_record_that_is_refused_costs_itself_alone(manager: TransactionManager | None) -> None:
    sender = make(manager, batch_size_bytes=10_000)
    for number in range(5):
        batch = put(sender, b"%d" % number)
    sender.on_answers(poll(sender)[0], [refused(1, 3)], 0)
    request = poll(sender)[0]
    assert values(request) == [b"0", b"2", b"4"]
    assert sequences(request) == [-1 if manager is None else 0]
    assert not batch.done, "its good records are on their way"
    sender.on_answers(request, [BatchAnswer(ErrorCode.NONE, base_offset=70)], 0)
    assert sender.finished() == [batch]
    outcomes = [batch.outcome(position) for position in range(5)]
    assert [offset for offset, _, _ in outcomes] == [70, -1, 71, -1, 72]
    assert ["" if error is None else error.why for _, _, error in outcomes] == [
        "", "ledger-0: too far in the future", "", "ledger-0: too far in the future", "",
    ]  # fmt: skip
    assert sender.accumulator.used_bytes == 0
    put(sender, b"5")
    assert sequences(poll(sender)[0]) == [-1 if manager is None else 3]


def test_what_follows_a_batch_that_lost_records_is_numbered_anew() -> None:
    sender = known(make(idempotent(), batch_size_bytes=110))
    for number in range(4):
        put(sender, b"%d" % number * 4)
    assert [batch.record_count for batch in sender.accumulator.batches()] == [2, 2]
    first, second = poll(sender)[0], poll(sender)[0]
    assert (sequences(first), sequences(second)) == ([0], [2])
    sender.on_answers(first, [refused(0)], 0)
    assert poll(sender) == [], "the second may have been written under the old numbers"
    sender.on_answers(second, [BatchAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)], 0)
    again = poll(sender, 1_000)[0]
    assert (values(again), sequences(again)) == ([b"1111"], [0])
    assert Batch.parse(again.batches[0].data or b"").producer_epoch == 1
    sender.on_answers(again, [OK], 1_000)
    last = poll(sender, 1_000)[0]
    assert (values(last), sequences(last)) == ([b"2222", b"3333"], [1])


@pytest.mark.parametrize("answer", [refused(), refused(0, 1), refused(7), refused(-1)])
def test_a_batch_refused_as_a_whole_or_for_records_it_does_not_have_fails_whole(answer: BatchAnswer) -> None:
    sender = make(idempotent(), batch_size_bytes=10_000)
    batch = put(sender, b"0")
    put(sender, b"1")
    sender.on_answers(poll(sender)[0], [answer], 0)
    assert batch.done
    assert [batch.outcome(position)[2] is None for position in (0, 1)] == [False, False]


def test_a_batch_that_is_refused_when_it_is_sent_again_may_have_been_written_and_fails_whole() -> None:
    sender = make(idempotent(), batch_size_bytes=10_000)
    batch = put(sender, b"0")
    put(sender, b"1")
    sender.on_no_answer(poll(sender)[0], ErrorCode.NETWORK_EXCEPTION, 0)
    sender.stale_leaders.clear()
    sender.on_answers(poll(sender, 1_000)[0], [refused(0)], 1_000)
    assert batch.done
    assert batch.error is not None
    assert batch.halves is None


def test_what_is_left_of_a_refused_batch_does_not_come_behind_what_followed_it() -> None:
    """A broker that has forgotten a producer takes any first sequence (as Kafka does)."""
    sender = known(make(idempotent(), batch_size_bytes=110))
    batches = [put(sender, b"%d" % number * 4) for number in range(4)]
    first, second = poll(sender)[0], poll(sender)[0]
    sender.on_answers(first, [refused(0)], 0)
    sender.on_answers(second, [OK], 0)
    assert [batch.error is None for batch in (batches[0], batches[3])] == [False, True]
    assert poll(sender, 1_000) == []
    put(sender, b"next")
    assert sequences(poll(sender, 1_000)[0]) == [0], "under a new epoch"
    assert sender.manager is not None
    assert sender.manager.identity.producer_epoch == 1


def test_a_batch_whose_answer_is_lost_is_settled_before_what_follows_a_refused_one_starts_over() -> None:
    """Or it would be written a second time, under the new epoch."""
    sender, broker = known(make(idempotent())), ModelBroker()
    kept = [put(sender, b"%d" % number) for number in range(3)]
    first, second, third = poll(sender)[0], poll(sender)[0], poll(sender)[0]
    broker.append(first.batches[0].data or b"")
    sender.on_no_answer(first, ErrorCode.NETWORK_EXCEPTION, 0)
    sender.on_answers(second, [BatchAnswer(ErrorCode.INVALID_RECORD)], 0)
    sender.on_answers(third, [broker.append(third.batches[0].data or b"")], 0)
    sender.stale_leaders.clear()
    for now_ms in (1_000, 2_000, 3_000):
        for request in poll(sender, now_ms):
            sender.on_answers(request, [broker.append(request.batches[0].data or b"")], now_ms)
    assert broker.log == [b"0", b"2"]
    assert [(batch.done, batch.error is None) for batch in kept] == [(True, True), (True, False), (True, True)]


@pytest.mark.timeout(240)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_records_that_are_refused_cost_no_other_its_order_or_its_only_place(data: st.DataObject) -> None:
    """Some records are never taken; messages are lost and late; or the broker takes any first sequence."""
    sender = make(idempotent(), batch_size_bytes=130)
    lenient, faulty = data.draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    broker = ModelBroker()

    def append(request: Produce) -> list[BatchAnswer]:
        batch = Batch.parse(request.batches[0].data or b"")
        places = [n for n, record in enumerate(read_records(batch)) if (record.value or b"").endswith(b"!")]
        if places:
            return [BatchAnswer(ErrorCode.INVALID_RECORD, refused=tuple(places))]
        if lenient and broker.epoch < 0:
            broker.epoch, broker.next_sequence = batch.producer_epoch, batch.base_sequence
        return [broker.append(bytes(batch.data))]

    kept: list[tuple[bytes, ProducerBatch, int]] = []
    late: list[tuple[Produce, list[BatchAnswer]]] = []
    for now_ms in range(0, 60_000, 500):
        quiet = now_ms > 4_000
        for _ in range(0 if quiet else data.draw(st.integers(0, 5))):
            value = b"%d%s" % (len(kept), data.draw(st.sampled_from([b"", b"", b"!"])))
            appended = sender.accumulator.append(P0, None, value, (), now_ms, now_ms)
            assert appended is not None
            kept.append((value, appended[0], appended[1]))
        requests = poll(sender, now_ms) + poll(sender, now_ms)
        for request, answers in late:
            sender.on_answers(request, answers, now_ms)
        late = []
        for request in requests:
            fault = data.draw(Fault) if faulty and not quiet else "none"
            if fault == "request lost":
                sender.on_no_answer(request, ErrorCode.NETWORK_EXCEPTION, now_ms)
                continue
            answers = [BatchAnswer(ErrorCode.NOT_ENOUGH_REPLICAS)] if fault == "refused for now" else append(request)
            if fault == "answer lost":
                sender.on_no_answer(request, ErrorCode.NETWORK_EXCEPTION, now_ms)
            elif fault == "answer late":
                late.append((request, answers))
            else:
                sender.on_answers(request, answers, now_ms)
        sender.stale_leaders.clear()
        if quiet and not sender.busy and sender.accumulator.is_empty and not late:
            break
    assert all(batch.done for _, batch, _ in kept)
    delivered = [value for value, batch, position in kept if batch.outcome(position)[2] is None]
    assert broker.log == delivered, "in order, each once, and whatever failed is not there"
    assert not [value for value in delivered if value.endswith(b"!")]
    if not faulty and not lenient:
        assert delivered == [value for value, _, _ in kept if not value.endswith(b"!")], "the good ones are all there"
    for value, batch, position in kept:
        offset, _, error = batch.outcome(position)
        assert error is not None or broker.log[offset] == value
    assert sender.accumulator.used_bytes == 0


def test_a_record_that_is_refused_costs_its_transaction() -> None:
    sender = make(in_transaction(P0), batch_size_bytes=10_000)
    batch = put(sender, b"0")
    put(sender, b"1")
    sender.on_answers(poll(sender)[0], [refused(0)], 0)
    assert batch.done
    assert sender.manager is not None
    assert sender.manager.state is ProducerState.ABORTABLE_ERROR

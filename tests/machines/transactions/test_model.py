"""Random histories of producers, crashes and failing writes, held against what a transaction promises.

After every step: what is in memory equals what the log says; an epoch of a producer id never falls; markers name an
epoch above the data's (V2); no transaction is told both outcomes; nobody but the current owner changed anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from semel.errors import ErrorCode
from semel.machines.contract import Decision, SendMarkers
from semel.machines.transactions.coordinator import TransactionCoordinator, TransactionSettings
from semel.machines.transactions.metadata import LAST_CLIENT_EPOCH, MAX_EPOCH
from semel.machines.transactions.states import PREPARED, TransactionState
from semel.machines.values import ProducerIdentity, TopicPartition
from tests.machines.transactions.transaction_driver import T0, TransactionDriver, metadata_in

IDS = ("payments", "orders")
PARTITIONS = tuple(TopicPartition("ledger", number) for number in range(4))
SETTINGS = TransactionSettings(
    transaction_state_log_num_partitions=2,
    transaction_remove_expired_transaction_cleanup_interval_ms=600_000,
    transactional_id_expiration_ms=2_000_000,
)

#: One id is busier, so that its zombies meet its successors often.
ids = st.sampled_from((*IDS, IDS[0], IDS[0]))
partitions = st.sets(st.sampled_from(PARTITIONS), min_size=1, max_size=3)


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = TransactionDriver(SETTINGS)
        self.held: dict[str, list[ProducerIdentity]] = {name: [] for name in IDS}
        #: Every producer identity that may have written to a partition within the transaction that is open.
        self.data: dict[str, dict[TopicPartition, ProducerIdentity]] = {name: {} for name in IDS}
        self.outcomes: dict[tuple[int, int, str, int], bool] = {}
        self.highest: dict[int, int] = {}
        self.pending: list[Decision[object]] = []
        self.generation = 0

    # What clients do, with any identity they ever held: zombies are among them.

    def identity(self, name: str, age: int) -> ProducerIdentity:
        held = self.held[name]
        return held[max(0, len(held) - 1 - age)] if held else ProducerIdentity(1, 0)

    def hold(self, name: str, producer_id: int, producer_epoch: int) -> None:
        assert 0 <= producer_epoch <= LAST_CLIENT_EPOCH, "the highest epoch is the coordinator's own"
        self.held[name].append(ProducerIdentity(producer_id, producer_epoch))

    @rule(name=ids, age=st.none() | st.integers(0, 3))
    def init(self, name: str, age: int | None) -> None:
        expected = None if age is None or not self.held[name] else self.identity(name, age)
        with self.fencing():
            reply = self.driver.init(name, identity=expected)
        if reply.error_code == ErrorCode.NONE:
            self.hold(name, reply.producer_id, reply.producer_epoch)
            assert self.driver.state(name) == "Empty"

    @rule(name=ids, age=st.integers(0, 2), added=partitions, explicitly=st.booleans())
    def add(self, name: str, age: int, added: set[TopicPartition], explicitly: bool) -> None:
        identity = self.identity(name, age)
        send = self.driver.add if explicitly else self.driver.produce
        if send(identity, *added, transactional_id=name) is ErrorCode.NONE:
            metadata = self.driver.metadata(name)
            assert metadata.identity == identity, "only the current owner adds"
            assert metadata.state is TransactionState.ONGOING and added <= metadata.partitions
            self.data[name].update(dict.fromkeys(added, identity))

    @rule(name=ids, age=st.integers(0, 2), commit=st.booleans(), version=st.sampled_from((1, 4, 5)))
    def end(self, name: str, age: int, commit: bool, version: int) -> None:
        identity = self.identity(name, age)
        before = self.driver.known().get(name)
        written = len(self.driver.log)
        reply = self.driver.end(identity, commit, version, name)
        if reply.error_code == ErrorCode.NONE:
            assert before is not None
            if len(self.driver.log) > written:
                assert before.identity == identity, "only the current owner ends"
            if version == 5:
                assert (reply.producer_id, reply.producer_epoch) != (identity.producer_id, identity.producer_epoch)
                self.hold(name, reply.producer_id, reply.producer_epoch)

    # What happens around them.

    @rule(name=ids, commit=st.booleans())
    def decide_and_leave_pending(self, name: str, commit: bool) -> None:
        if len(self.pending) < 2 and self.held[name]:
            decision = self.driver.end_decision(self.identity(name, 0), commit, 5, name)
            if decision.records:
                self.pending.append(decision)

    @rule(fails=st.booleans())
    def settle_a_pending_decision(self, fails: bool) -> None:
        if self.pending:
            decision = self.pending.pop(0)
            if fails:
                self.driver.coordinator.append_failed(decision, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                self.driver.perform(decision)

    @rule()
    def appends_begin_or_cease_to_fail(self) -> None:
        self.driver.append_fails = not self.driver.append_fails

    @rule(data=st.data())
    def some_markers_are_written(self, data: st.DataObject) -> None:
        if self.driver.waiting:
            sent = data.draw(st.sampled_from(self.driver.waiting))
            chosen = data.draw(st.sets(st.sampled_from(sent.partitions), min_size=1))
            self.mark(sent, chosen)

    @rule()
    def all_markers_are_written(self) -> None:
        for sent in list(self.driver.waiting):
            self.mark(sent, set(sent.partitions))

    def mark(self, sent: SendMarkers, chosen: set[TopicPartition]) -> None:
        for partition in chosen:
            wrote = self.data[sent.transactional_id].get(partition)
            if wrote is not None and wrote.producer_id == sent.producer_id:
                if sent.transaction_version == 2:
                    assert sent.producer_epoch > wrote.producer_epoch, "a marker's epoch is above its data's"
                else:
                    assert sent.producer_epoch >= wrote.producer_epoch
            if sent.transaction_version == 2:
                key = (sent.producer_id, sent.producer_epoch, partition.topic, partition.partition)
                assert self.outcomes.setdefault(key, sent.commit) is sent.commit, "one transaction, two outcomes"
        self.driver.perform(self.driver.coordinator.markers_written(sent, self.driver.now_ms, chosen))
        if self.driver.known()[sent.transactional_id].state not in PREPARED:
            self.driver.waiting = [each for each in self.driver.waiting if each is not sent]
            self.data[sent.transactional_id].clear()

    @rule(advance_ms=st.sampled_from((1, 400, 30_000, 61_000, 700_000, 3_000_000)))
    def time_passes(self, advance_ms: int) -> None:
        with self.fencing():
            self.driver.tick(advance_ms)

    @contextmanager
    def fencing(self) -> Iterator[None]:
        """Whoever is aborted while absent must be fenced: every new marker is an abort with an epoch above its own."""
        before, waiting = self.driver.known(), len(self.driver.waiting)
        yield
        for sent in self.driver.waiting[waiting:]:
            assert not sent.commit
            assert sent.producer_epoch > before[sent.transactional_id].producer_epoch

    @rule()
    def the_broker_crashes(self) -> None:
        self.pending.clear()
        self.driver.append_fails = False
        self.driver.start()

    @rule(name=ids)
    def the_epochs_run_out(self, name: str) -> None:
        metadata = self.driver.known().get(name)
        if metadata is not None and metadata.state is TransactionState.EMPTY and not self.pending:
            self.driver.append_fails = False
            placed = metadata_in(TransactionState.EMPTY, epoch=LAST_CLIENT_EPOCH, now_ms=self.driver.now_ms)
            producer_id = self.driver.new_producer_id()
            self.driver.place(replace(placed, transactional_id=name, producer_id=producer_id))
            self.hold(name, producer_id, LAST_CLIENT_EPOCH)

    # What always holds.

    @invariant()
    def memory_equals_the_log(self) -> None:
        fresh = TransactionCoordinator(SETTINGS)
        for partition in range(SETTINGS.transaction_state_log_num_partitions):
            fresh.load(partition, 1)
        for record in self.driver.log:
            fresh.replay(record)
        replayed = {name: each for shard in fresh._shards.values() for name, each in shard.entries.items()}
        assert replayed == self.driver.known()

    @invariant()
    def epochs_never_fall(self) -> None:
        for metadata in self.driver.known().values():
            assert metadata.producer_epoch >= self.highest.get(metadata.producer_id, -1)
            assert metadata.producer_epoch <= MAX_EPOCH
            self.highest[metadata.producer_id] = metadata.producer_epoch

    @invariant()
    def prepared_transactions_are_on_their_way(self) -> None:
        waiting = {sent.transactional_id for sent in self.driver.waiting}
        for name, metadata in self.driver.known().items():
            if metadata.state in PREPARED:
                retried = self.driver.coordinator._next_retry_ms is not None
                assert name in waiting or retried or self.pending, f"{name} would stay prepared for ever"

    @invariant()
    def nothing_stays_open_past_its_deadline_unnoticed(self) -> None:
        wake_ms = self.driver.coordinator.next_wake_ms()
        for metadata in self.driver.known().values():
            if metadata.deadline_ms is not None and not self.pending:
                assert wake_ms is not None
                assert wake_ms <= max(metadata.deadline_ms + 1, self.driver.now_ms + 500)

    @invariant()
    def only_pending_decisions_are_pending(self) -> None:
        under_way = sum(len(shard.pending) for shard in self.driver.coordinator._shards.values())
        assert under_way == len(self.pending)

    def teardown(self) -> None:
        """Whatever happened, once the faults heal a new producer gets the id and commits."""
        for decision in self.pending:
            self.driver.perform(decision)
        self.driver.append_fails = False
        self.driver.tick(61_000)
        for name in IDS:
            producer = self.driver.producer(name)
            assert self.driver.produce(producer, T0, transactional_id=name) is ErrorCode.NONE
            assert self.driver.end(producer, True, 5, name).error_code == ErrorCode.NONE
            self.driver.write_markers()
            assert self.driver.state(name) == "CompleteCommit"


Transactions.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestTransactions = Transactions.TestCase

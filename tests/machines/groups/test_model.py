"""Groups under random clients, faults and restarts: one owner per partition, no stale commit, memory equal to log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semel.errors import ErrorCode
from semel.machines.groups.classic.group import ClassicGroup, ClassicGroupState
from semel.machines.groups.consumer.group import ConsumerGroup
from semel.machines.groups.coordinator import GroupSettings, TopicInfo
from tests.machines.groups.group_driver import GROUP, TOPICS, GroupDriver

PARTITIONS = 4
LEDGER = TOPICS["ledger"].topic_id


@dataclass
class ClassicClient:
    """A consumer that follows the classic protocol, as far as it hears of it."""

    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    join_token: int | None = None
    sync_token: int | None = None
    owned: frozenset[int] = frozenset()
    running: bool = True

    def forget(self) -> None:
        self.member_id, self.generation, self.owned = "", -1, frozenset()

    def step(self, driver: GroupDriver) -> None:
        """Do the next thing: read an answer, join, sync or send a heartbeat."""
        if self.join_token is not None:
            if (reply := driver.answers.get(self.join_token)) is not None:
                self.join_token = None
                self.joined(driver, reply)
        elif self.sync_token is not None:
            if (reply := driver.answers.get(self.sync_token)) is not None:
                self.sync_token = None
                self.synced(reply)
        elif self.generation < 0:
            token, reply = driver.join(self.member_id, instance=self.instance)
            if reply is None:
                self.join_token = token
            else:
                self.joined(driver, reply)
        else:
            self.heard(driver.heartbeat(self.member_id, self.generation, instance=self.instance))

    def joined(self, driver: GroupDriver, reply: Any) -> None:
        if reply.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            return
        if reply.error_code != ErrorCode.NONE:
            self.heard(ErrorCode(reply.error_code))
            return
        self.member_id, self.generation, self.owned = reply.member_id, reply.generation_id, frozenset()
        assignments = {}
        if reply.leader == reply.member_id and not reply.skip_assignment:
            ids = sorted(member.member_id for member in reply.members)
            assignments = {
                member: bytes(p for p in range(PARTITIONS) if p % len(ids) == position)
                for position, member in enumerate(ids)
            }
        token, synced = driver.sync(self.member_id, self.generation, assignments, instance=self.instance)
        if synced is None:
            self.sync_token = token
        else:
            self.synced(synced)

    def synced(self, reply: Any) -> None:
        if reply.error_code == ErrorCode.NONE:
            self.owned = frozenset(reply.assignment)
        else:
            self.heard(ErrorCode(reply.error_code))

    def heard(self, code: ErrorCode) -> None:
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation, self.owned = -1, frozenset()
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.forget()
            self.running = False
        elif code != ErrorCode.NONE:
            self.forget()


class ClassicGroups(RuleBasedStateMachine):
    """Clients come, go, crash and fall silent; writes fail; the broker restarts."""

    @initialize()
    def start(self) -> None:
        self.driver = GroupDriver(GroupSettings(group_initial_rebalance_delay_ms=1000))
        self.clients: list[ClassicClient] = []
        self.committed = -1
        self.next_offset = 0

    @rule(static=st.booleans())
    def a_client_comes(self, static: bool) -> None:
        if len([client for client in self.clients if client.running]) < 4:
            instance = f"i{len(self.clients) % 2}" if static else None
            self.clients.append(ClassicClient(instance))

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9), steps=st.integers(1, 3))
    def a_client_goes_on(self, which: int, steps: int) -> None:
        client = self.clients[which % len(self.clients)]
        for _ in range(steps):
            if client.running:
                client.step(self.driver)

    @rule()
    def everybody_goes_on(self) -> None:
        for client in self.clients:
            if client.running:
                client.step(self.driver)

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9))
    def a_client_leaves(self, which: int) -> None:
        client = self.clients[which % len(self.clients)]
        if client.running and client.member_id:
            self.driver.leave((client.member_id, client.instance))
            client.running = False

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9))
    def a_client_crashes(self, which: int) -> None:
        self.clients[which % len(self.clients)].running = False

    @rule(ms=st.sampled_from([100, 1000, 6000, 30_000, 70_000]))
    def time_passes(self, ms: int) -> None:
        self.driver.pass_ms(ms)

    @rule()
    def the_next_write_fails(self) -> None:
        self.driver.fail_next = True

    @rule()
    def the_broker_restarts(self) -> None:
        self.driver = self.driver.restarted()
        for client in self.clients:
            client.join_token = client.sync_token = None
            client.generation, client.owned = -1, frozenset()

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9), transactional=st.booleans(), commit=st.booleans())
    def a_client_commits(self, which: int, transactional: bool, commit: bool) -> None:
        """G2: accepted if and only if the sender is in the generation that is; G1 for the transactional ones."""
        client = self.clients[which % len(self.clients)]
        if not client.member_id or client.generation < 0:
            return
        self.driver.fail_next = False
        group = self.driver.coordinator.groups.get(GROUP)
        assert group is None or isinstance(group, ClassicGroup)
        current = (
            group is not None
            and client.member_id in group.members
            and client.generation == group.generation_id
            and (client.instance is None or group.static_members.get(client.instance) == client.member_id)
        )
        self.next_offset += 1
        identity = {"member_id": client.member_id, "generation": client.generation, "instance": client.instance}
        if transactional:
            code = self.driver.txn_commit(self.next_offset, **identity)  # type: ignore[arg-type]
            assert (code == ErrorCode.NONE) is current
            assert self.driver.fetched()[0] == self.committed
            self.driver.marker(7, commit=commit)
            accepted = current and commit
        else:
            code = self.driver.commit(self.next_offset, **identity)  # type: ignore[arg-type]
            waiting = group is not None and group.state is ClassicGroupState.COMPLETING_REBALANCE
            accepted = current and not waiting
            assert (code == ErrorCode.NONE) is accepted
        if accepted:
            self.committed = self.next_offset

    @invariant()
    def what_is_committed_is_what_was_accepted(self) -> None:
        assert self.driver.fetched()[0] == self.committed

    @invariant()
    def one_owner_per_partition_and_generation(self) -> None:
        """G3, among clients that would be let in with what they hold."""
        owners: dict[tuple[int, int], ClassicClient] = {}
        group = self.driver.coordinator.groups.get(GROUP)
        for client in self.clients:
            if isinstance(group, ClassicGroup) and client.member_id in group.members:
                for partition in client.owned:
                    assert (client.generation, partition) not in owners
                    owners[client.generation, partition] = client

    @invariant()
    def the_log_gives_back_what_is_stable(self) -> None:
        group = self.driver.coordinator.groups.get(GROUP)
        # That a group became empty may fail to be written: then its last members come back, and time out again.
        written = (
            (ClassicGroupState.STABLE,) if self.driver.failures else (ClassicGroupState.STABLE, ClassicGroupState.EMPTY)
        )
        if isinstance(group, ClassicGroup) and group.state in written:
            again = self.driver.restarted().coordinator.groups.get(GROUP)
            assert isinstance(again, ClassicGroup)
            assert again.state is group.state
            assert again.generation_id == group.generation_id
            assert again.leader_id == group.leader_id
            assert again.static_members == group.static_members
            assert {m.member_id: m.assignment for m in again.members.values()} == {
                m.member_id: m.assignment for m in group.members.values()
            }


@dataclass
class ConsumerClient:
    """A consumer that follows the consumer protocol."""

    name: str
    instance: str | None = None
    epoch: int = 0
    owned: dict[UUID, set[int]] = field(default_factory=dict)
    #: What it was told to have and has not got round to.
    told: dict[UUID, set[int]] | None = None
    running: bool = True


class ConsumerGroups(RuleBasedStateMachine):
    """Heartbeats whose answers are lost, slow revocations, silence, failed writes, growing topics, restarts."""

    @initialize()
    def start(self) -> None:
        self.driver = GroupDriver()
        self.clients: list[ConsumerClient] = []
        self.partitions = PARTITIONS

    @rule(static=st.booleans())
    def a_client_comes(self, static: bool) -> None:
        if len([client for client in self.clients if client.running]) < 4:
            name = f"m{len(self.clients)}"
            self.clients.append(ConsumerClient(name, f"i{len(self.clients)}" if static else None))

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9), lost=st.booleans(), says=st.booleans())
    def a_client_sends_a_heartbeat(self, which: int, lost: bool, says: bool) -> None:
        client = self.clients[which % len(self.clients)]
        if client.running:
            self.heartbeat(client, lost=lost, says=says)

    @rule()
    def everybody_goes_on(self) -> None:
        for client in self.clients:
            if client.running:
                self.follow(client)
                self.heartbeat(client, lost=False, says=True)

    def heartbeat(self, client: ConsumerClient, *, lost: bool, says: bool) -> None:
        owned = {topic_id: sorted(partitions) for topic_id, partitions in client.owned.items()}
        # What a client says it has is what it will go on having: it does not speak while it changes.
        says = client.epoch == 0 or (says and client.told is None)
        reply = self.driver.consumer_heartbeat(
            client.name, client.epoch, owned=owned if says else None, instance=client.instance
        )
        if lost:
            return
        if reply.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            client.epoch, client.owned, client.told = 0, {}, None
        elif reply.error_code == ErrorCode.NONE:
            client.epoch = reply.member_epoch
            if reply.assignment is not None:
                client.told = {part.topic_id: set(part.partitions) for part in reply.assignment.topic_partitions}

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9))
    def a_client_follows(self, which: int) -> None:
        self.follow(self.clients[which % len(self.clients)])

    @staticmethod
    def follow(client: ConsumerClient) -> None:
        if client.told is not None:
            client.owned, client.told = client.told, None

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9))
    def a_client_leaves(self, which: int) -> None:
        client = self.clients[which % len(self.clients)]
        if client.running and client.epoch > 0:
            client.running = False
            client.owned = {}
            self.driver.consumer_heartbeat(client.name, -1, instance=client.instance)

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9))
    def a_static_client_restarts(self, which: int) -> None:
        client = self.clients[which % len(self.clients)]
        if client.running and client.instance is not None and client.epoch > 0:
            reply = self.driver.consumer_heartbeat(client.name, -2, instance=client.instance)
            if reply.error_code == ErrorCode.NONE:
                client.name += "'"
            client.epoch, client.owned, client.told = 0, {}, None

    @rule(ms=st.sampled_from([1000, 10_000, 31_000, 46_000]))
    def time_passes(self, ms: int) -> None:
        self.driver.pass_ms(ms)

    @rule()
    def the_next_write_fails(self) -> None:
        self.driver.fail_next = True

    @rule()
    def the_broker_restarts(self) -> None:
        self.driver = self.driver.restarted()
        self.driver.coordinator.topics_changed(self.topics(), self.driver.now_ms)

    @precondition(lambda self: self.partitions < 8)
    @rule()
    def the_topic_grows(self) -> None:
        self.partitions += 1
        self.driver.coordinator.topics_changed(self.topics(), self.driver.now_ms)

    def topics(self) -> dict[str, TopicInfo]:
        return {**TOPICS, "ledger": TopicInfo(LEDGER, self.partitions)}

    def group(self) -> ConsumerGroup | None:
        group = self.driver.coordinator.groups.get(GROUP)
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    @invariant()
    def one_owner_per_partition(self) -> None:
        """G3, in the coordinator's memory and among clients that it would still listen to."""
        group = self.group()
        if group is None:
            return
        seen: dict[tuple[UUID, int], str] = {}
        for member in group.members.values():
            for owned in (member.assigned, member.pending_revocation):
                for place in ((topic_id, partition) for topic_id, places in owned.items() for partition in places):
                    assert place not in seen
                    seen[place] = member.member_id
        assert seen == group.owners
        for client in self.clients:
            member_of = group.members.get(client.name)
            if member_of is not None and client.epoch in (member_of.member_epoch, member_of.previous_member_epoch):
                for topic_id, partitions in client.owned.items():
                    assert all(seen.get((topic_id, partition)) == client.name for partition in partitions)

    @invariant()
    def the_log_gives_the_same_group(self) -> None:
        group = self.group()
        again = self.driver.restarted().coordinator.groups.get(GROUP)
        if group is None:
            assert again is None
            return
        assert isinstance(again, ConsumerGroup)
        for name in ("epoch", "metadata_hash", "members", "static_members", "target", "target_epoch", "owners"):
            assert getattr(again, name) == getattr(group, name), name

    def teardown(self) -> None:
        """Left alone, whoever runs ends up with all partitions between them."""
        if not hasattr(self, "driver"):
            return
        self.driver.fail_next = False
        running = [client for client in self.clients if client.running]
        if not running:
            return
        self.driver.pass_ms(46_000)
        for _ in range(12):
            self.everybody_goes_on()
            self.driver.pass_ms(1000)
        group = self.group()
        assert group is not None and group.state.value == "Stable"
        held = [partition for client in running for partition in client.owned.get(LEDGER, ())]
        assert sorted(held) == list(range(self.partitions))


TestClassicGroups = ClassicGroups.TestCase
TestClassicGroups.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestConsumerGroups = ConsumerGroups.TestCase
TestConsumerGroups.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)

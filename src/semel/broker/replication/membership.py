"""This broker's place in its cluster: registered in ZooKeeper, leading and following, and perhaps the controller.

Guarantees (the letters are the rules of the cluster):

- A life begins with one multi that needs the data directory's lock and its id (Z4). Nothing is led or followed before.
- When ZooKeeper has ended the session, or somebody certified our death, every role is dropped and a new life begins
  (Z5). If another process has registered under our id, the broker stops: an id is used twice.
- While ZooKeeper does not answer, what was decided goes on and nothing is decided (Z6).
- The controller elects by conditional multis (E1, E2); a broker whose port refuses connections is certified dead (E6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from semel.broker.replication import joining
from semel.broker.replication.admission import Admissions
from semel.broker.replication.certificates import Certificates
from semel.broker.replication.controlling import Controlling
from semel.broker.replication.coordinators import Coordinators
from semel.broker.replication.damaged import DamagedReplicas
from semel.broker.replication.feeding import Feeds
from semel.broker.replication.fetching import LeaderFetcher
from semel.broker.replication.inter_broker import PeerDoor, inter_broker_listener
from semel.broker.replication.last_life import LastLife
from semel.broker.replication.local_topics import ALL_BROKERS_NODE, LocalTopics
from semel.broker.replication.named_brokers import NamedBrokers
from semel.broker.replication.older_zookeeper import raise_leader_epochs, refuse_lost, refuse_older, refuse_wiped
from semel.broker.replication.partition import ReplicatedPartition
from semel.broker.replication.preferred_leaders import keep_preferred_leaders
from semel.broker.replication.producer_ids import ClusterProducerIds
from semel.broker.replication.replica import LocalReplica
from semel.broker.replication.shared import Shared
from semel.cluster.image_reader import ImageReader
from semel.cluster.peers import PEER_CLIENT_ID, Peers
from semel.cluster.session import MultiRefused, NodeExists, SessionState, ZooKeeperError, ZooKeeperSession
from semel.config import ConfigError, topic_values
from semel.errors import InvariantViolation, Refused
from semel.machines.controller.decide import decide
from semel.machines.controller.image import Image
from semel.machines.controller.registration import LeaveUncleanly, Register
from semel.machines.replication.values import PartitionState
from semel.machines.security.access import Operation
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.values import (
    BrokerRegistration,
    Endpoint,
    decode_cluster_id,
    decode_state,
    encode_cluster_id,
    encode_controller_epoch,
)

if TYPE_CHECKING:
    from semel.broker.data_directory import DataDirectory
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer
    from semel.broker.stored.access_rules import StoredRules
    from semel.broker.topics.logs import TopicLogs
    from semel.broker.topics.topic import Topic
    from semel.machines.security.access import AccessRules

logger = logging.getLogger(__name__)

#: How often leaders look for followers that lag, and high watermarks are written down.
TICK_S, CHECKPOINT_S = 0.5, 5.0
RETRY_S = 0.2
#: How long a request waits for what another broker has created.
KNOWN_WITHIN_S = 5.0
#: And for ZooKeeper, if it does not answer just now.
CONNECTED_WITHIN_S = 10.0


class Membership:
    """The cluster as one broker takes part in it: `broker.cluster`."""

    def __init__(
        self,
        broker: BrokerServer,
        session: ZooKeeperSession,
        directory: Path,
        connect: Callable[[str, int], Any] | None = None,
        door: PeerDoor | None = None,
    ) -> None:
        self._broker = broker
        self.session = session
        self.broker_id = broker.node_id
        #: Of this life; -1 before it is registered.
        self.broker_epoch = -1
        #: Whether this broker stops: it takes no role any more.
        self._has_left = False
        self.lag_time_max_ms: int = broker.settings["replica.lag.time.max.ms"]
        self.now_ms = broker.now_ms
        #: Whether what is written counts only when it is on disk.
        self.with_fsync: bool = broker.settings["semel.durability"] == "fsync"
        self._event = asyncio.Event()
        watched = (str(self.broker_id), ALL_BROKERS_NODE)
        self.last_life = LastLife(broker.files, directory)
        self._is_older_accepted = False
        self.reader = ImageReader(session, self._settings_of, self._event.set, watched, self.last_life.saw)
        self.image = Image()
        #: How other brokers are reached.
        self.door = door or PeerDoor(broker, inter_broker_listener(broker.settings, broker.listening.listeners))
        arguments: dict[str, Any] = {} if connect is None else {"connect": connect}
        if self.door.is_secured:
            arguments["logged_in"] = self.door
        self.peers = Peers(broker.cluster_client_id, self.address_of, **arguments)
        self._fetchers: dict[int, tuple[LeaderFetcher, asyncio.Task[None]]] = {}
        self.feeds = Feeds(broker, self)
        self.producer_ids = ClusterProducerIds(self)
        #: The groups and transactions that this broker coordinates.
        self.coordinators = Coordinators(broker, self)
        self.admissions = Admissions(broker, self)
        self._topics = LocalTopics(broker, self)
        self._controlling = Controlling(self)
        self._damaged = DamagedReplicas(broker, self)
        #: Users, quotas, access rules: what all brokers share besides topics.
        self.shared = Shared(broker, self)
        self.certificates = Certificates(self)
        self._watching: list[asyncio.Future[None]] = []
        self._must_register = False
        self.named_brokers = NamedBrokers(self.broker_id, self.reader, self.now_ms, self.registration)
        #: How often replicas that this broker leads have entered or left an in-sync set, by its own wish.
        self.isr_expands = self.isr_shrinks = 0
        session.add_listener(self._on_session)

    # What handlers and parts ask

    def counts_isr_change(self, *, grown: bool) -> None:
        if grown:
            self.isr_expands += 1
        else:
            self.isr_shrinks += 1

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._broker.spawn(work)

    async def beside(self, work: Callable[[], None]) -> None:
        await self._broker.loop.run_in_executor(None, work)

    async def flush(self, partition: ReplicatedPartition) -> bool:
        """Put everything that a partition holds now on disk. Returns whether that failed."""
        return bool(await self._broker.durability.flusher.flush([partition]))

    def address_of(self, broker: int, listener: str | None = None) -> tuple[str, int] | None:
        """A broker's address, on the listener of this name or on the one that brokers use among themselves."""
        registration = self.reader.registrations.get(broker)
        return None if registration is None else self.address_in(registration, listener)

    def address_in(self, registration: BrokerRegistration, listener: str | None) -> tuple[str, int] | None:
        name = listener or self.door.listener.name
        for endpoint in registration.endpoints:
            if endpoint.listener == name:
                return endpoint.host, endpoint.port
        return None

    def is_of_a_broker(self, call: Call) -> bool:
        """Whether a request comes from another broker: by the listener of brokers, and with an authorizer from somebody
        who may act for the cluster. The client id alone says nothing, for anybody can take one."""
        if not call.client_id.startswith(PEER_CLIENT_ID) or call.connection.listener_name != self.door.listener.name:
            return False
        access = self._broker.access
        return access is None or access.allows_on_cluster(call, Operation.CLUSTER_ACTION, logged=False)

    def lives(self, broker: int) -> bool:
        return broker in self.reader.registrations

    @property
    def reaches_zookeeper(self) -> bool:
        """Whether ZooKeeper answers: without it nothing is decided (Z6)."""
        return self.session.state is SessionState.CONNECTED

    def live_brokers(self) -> list[int]:
        return sorted(self.reader.registrations)

    def state_of(self, topic: str, index: int) -> tuple[PartitionState | None, tuple[int, ...]]:
        """The register of a partition, and its replicas."""
        known = self.image.states.get(TopicPartition(topic, index))
        found = self.image.topics.get(topic)
        replicas = found.assignment.partitions.get(index, ()) if found is not None else ()
        return (None if known is None else known[0]), replicas

    def unreadable_nodes(self) -> list[str]:
        """Nodes in ZooKeeper that this broker cannot read, and why. What was known of them goes on."""
        return [*self.reader.unreadable(), *self.shared.reader.unreadable()]

    async def read_state(self, partition: TopicPartition) -> tuple[PartitionState, int]:
        """What the register says, not what we know of it."""
        path = paths.state(*partition)
        await self.session.sync(path)
        data, stat = await self.session.get(path)
        return decode_state(data, path), stat.version

    def is_known(self, topic: str, partitions: int) -> bool:
        """Whether this broker knows a topic and who leads each of its partitions."""
        return topic in self._broker.topics.topics and all(
            TopicPartition(topic, index) in self.image.states for index in range(partitions)
        )

    def has_topic(self, topic: Topic) -> bool:
        """Whether this broker still knows this very topic."""
        return self._broker.topics.topics.get(topic.name) is topic

    def topic_settings(self, name: str) -> Mapping[str, str] | None:
        """The settings that a topic has of its own, as this broker uses them."""
        topic = self._broker.topics.topics.get(name)
        return None if topic is None else topic.overrides

    def broker_settings(self, name: str) -> Mapping[str, str]:
        """The changed settings of this broker or, with an empty name, of all brokers, as this broker uses them."""
        return self._broker.stores.broker_settings.overrides_of(name)

    async def connected(self) -> None:
        """Before an administrator's change: while ZooKeeper elects its own leader, or the node is gone that this broker
        was connected to, nothing can be asked for a moment. Returns after a while in any case."""
        until_s = self._broker.loop.time() + CONNECTED_WITHIN_S
        while self.session.state is not SessionState.CONNECTED and self._broker.loop.time() < until_s:
            await self.changed()

    async def know_brokers(self) -> None:
        """Before replicas are placed: a broker that a client sees may be one that we do not know yet."""
        with suppress(ZooKeeperError):
            await self.read_again()

    async def know_topics(self, names: Iterable[str | None]) -> None:
        """Before topics are changed: another broker may have created them a moment ago."""
        registry = self._broker.topics.topics
        unknown = [name for name in names if name is not None and name not in registry]
        if unknown:
            await self.know_brokers()
        until_s = self._broker.loop.time() + KNOWN_WITHIN_S
        while any(name in self.image.topics and name not in registry for name in unknown):
            if self._broker.loop.time() > until_s:
                return
            await self.changed()

    async def read_again(self) -> None:
        """Know what is so now: something was refused because what we knew was old."""
        await self.reader.load()
        self.image = self.reader.image()
        self._event.set()

    def look_again(self) -> None:
        """At what this broker has to lead and to follow."""
        self._event.set()

    async def changed(self) -> None:
        """Wait until something has changed, or a moment."""
        waiting: asyncio.Future[None] = self._broker.loop.create_future()
        self._watching.append(waiting)
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await waiting

    def _settings_of(self, overrides: Mapping[str, str]) -> tuple[int, bool]:
        legal = dict(overrides)
        try:
            values = topic_values(self._broker.settings, legal)
        except ConfigError:
            values = topic_values(self._broker.settings, {})
        return values["min.insync.replicas"], values["unclean.leader.election.enable"]

    def shared_rules(self, rules: AccessRules) -> StoredRules:
        """Keep the rules of the cluster in `rules`."""
        from semel.broker.replication.shared_rules import SharedRules

        return SharedRules(self.shared, rules)

    # Life

    async def prepare(self, begins_with: DataDirectory | None = None) -> str:
        """Make the nodes that everybody needs. Returns the cluster's id. `begins_with` has topics of a broker that was
        alone, which begin this cluster."""
        session = self.session
        for path in paths.PERSISTENT:
            with suppress(NodeExists):
                await session.create(path)
        with suppress(NodeExists):
            await session.create(paths.CONTROLLER_EPOCH, encode_controller_epoch(0))
        if begins_with is not None:
            return await joining.begin(session, self.broker_id, begins_with)
        wanted = self._broker.settings["semel.cluster.id"]
        if wanted is None:
            from semel.broker.data_directory import new_id

            wanted = new_id(self._broker.environment.new_uuid)
        with suppress(NodeExists):
            await session.create(paths.CLUSTER_ID, encode_cluster_id(wanted))
        await joining.refuse_amid_joining(session, self.broker_id)
        return decode_cluster_id((await session.get(paths.CLUSTER_ID))[0])

    async def recognise(self) -> None:
        """Refuse a ZooKeeper that has forgotten what this broker has seen (E12)."""
        self._is_older_accepted = await refuse_older(self.session, self._broker, self.last_life)

    async def load(self) -> None:
        """Read the cluster, and learn which partitions are here, before anything is served."""
        await self.reader.load(strict=True)
        self.image = self.reader.image()
        await self._topics.follow_image()
        await self.shared.load()

    async def join(self, logs: TopicLogs) -> None:
        """Register, and take part; first without what was committed, if the machine went down and may have lost it."""
        await self.door.check(
            {number: self.address_of(number) for number in self.live_brokers() if number != self.broker_id}
        )
        self._broker.spawn(self.reader.run())
        self._broker.spawn(self.shared.reader.run())
        if self._is_older_accepted:
            await raise_leader_epochs(self, self._broker)
        known = self.reader.life(self.broker_id)
        is_older_copy = known is not None and self.last_life.is_older_than(known[1])
        if is_older_copy:
            logger.warning(
                "this data directory is older than the last life of broker %d in the cluster: was it restored from a "
                "copy, or has it lost files? It counts for nothing until it has fetched what it lacks", self.broker_id,
            )
            refuse_lost(self, self._partitions(), self._broker)
        if logs.may_lack_writes or is_older_copy:
            await self._leave_uncleanly()
        logs.note_machine()
        await self._register()
        self._broker.spawn(self._run())
        self._broker.spawn(self._tick())
        self._broker.spawn(keep_preferred_leaders(self._broker, self))
        self.producer_ids.claim_soon()
        self._event.set()

    async def hand_over(self) -> None:
        """Before a stop: let others lead, while we still serve (E8)."""
        if self._broker.settings["controlled.shutdown.enable"]:
            from semel.broker.replication.handing_over import hand_over

            await hand_over(self, self._broker.data.directory_id)

    def goes_on_as(self, broker_epoch: int) -> None:
        """The version of our life has changed, and it is the same life."""
        self.broker_epoch = broker_epoch
        for replica in self._replicas():
            replica.machine.broker_epoch = broker_epoch

    async def leave(self) -> None:
        """End the session: the others know at once."""
        self._has_left = True
        for replica in self._replicas():
            replica.resign()
        for _, task in self._fetchers.values():
            task.cancel()
        if self.broker_epoch >= 0:
            with suppress(OSError):  # it would only have helped to notice an old ZooKeeper
                await self.last_life.write_down()
        self.feeds.close()
        self.peers.close()
        await self.session.close()

    async def _leave_uncleanly(self) -> None:
        while True:
            for multi in decide(self.image, LeaveUncleanly(self.broker_id)):
                try:
                    await self.session.multi(multi.operations)
                except MultiRefused as refused:
                    refused.raise_unless_outrun()
                    break
            else:
                return
            await self.reader.load()
            self.image = self.reader.image()

    def registration(self) -> BrokerRegistration:
        """Where this broker can be reached."""
        listeners = self._broker.listening.listeners
        return BrokerRegistration(
            tuple(Endpoint(each.name, *each.endpoint) for each in listeners),
            {each.name: each.protocol for each in listeners},
            self.now_ms(),
            self._broker.rack,
        )

    async def _register(self) -> None:
        """Begin a new life, however often it takes (Z4)."""
        broker, registration = self._broker, self.registration()
        while True:
            await self.reader.load()
            known = self.reader.life(self.broker_id)
            if known is not None and known[0].directory_id != broker.data.directory_id:
                raise ConfigError(
                    f"node.id={self.broker_id}: the cluster knows this broker with another data directory. Start it "
                    "with that one, or choose another node.id"
                )
            version = None if known is None else known[1]
            broker_epoch = 0 if version is None else version + 1
            await self.last_life.begins(broker_epoch)
            stale = self.broker_id in self.reader.registrations
            event = Register(self.broker_id, registration, broker.data.directory_id, version, stale)
            try:
                (multi,) = decide(self.image, event)
                await self.session.multi(multi.operations)
            except MultiRefused as refused:
                refused.raise_unless_outrun()
                continue
            self.broker_epoch = broker_epoch
            break
        await self.last_life.began()
        await self.reader.load()
        logger.info("broker %d is registered, epoch %d", self.broker_id, self.broker_epoch)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            logger.warning("ZooKeeper has ended our session: every role is dropped until we are registered again")
            self._drop_roles()
        elif state is SessionState.CONNECTED:
            self._event.set()

    def _drop_roles(self) -> None:
        self._must_register = True
        for replica in self._replicas():
            replica.resign()
        self._follow({})
        self._event.set()

    async def _run(self) -> None:
        while True:
            await self._event.wait()
            self._event.clear()
            if self.session.state is not SessionState.CONNECTED:
                continue
            try:
                await self._react()
            except ZooKeeperError as error:
                logger.warning("ZooKeeper: %s", error)
                self.reader.refresh()
                self._broker.loop.call_later(RETRY_S, self._event.set)
            except ConfigError as error:
                logger.critical("the broker stops: %s", error)
                self._broker.spawn_stop()
                return
            except Exception as error:
                # It would keep its session, and follow nothing that is decided. Others can do better.
                self._broker.handle_failure(error)
                self._broker.spawn_stop()
                return

    async def _react(self) -> None:
        if self._must_register:
            await refuse_wiped(self.session, self.broker_id, self.broker_epoch)
            await self._register()
            self._must_register = False
            for partition in self._partitions():
                partition.replica = None
        self.image = self.reader.image()
        owner = self.reader.owners.get(self.broker_id)
        if owner is None:
            await self.session.sync(paths.broker(self.broker_id))
            if await self.session.exists(paths.broker(self.broker_id)) is not None:
                self.reader.refresh()  # what we know is old
                return
            logger.warning("we were certified dead and are not: registering again")
            self._drop_roles()
            return
        if owner != self.session.session_id:
            raise InvariantViolation(
                f"another process has registered as broker {self.broker_id} (node.id): an id is used twice"
            )
        await self._topics.follow_image()
        self._take_roles()
        watching, self._watching = self._watching, []
        for waiting in watching:
            if not waiting.done():
                waiting.set_result(None)
        await self._controlling.look(self.image)

    # Topics and roles

    def _partitions(self) -> list[ReplicatedPartition]:
        if "topics" not in self._broker.__dict__:
            return []  # a start that was refused before it knew any topics
        return [each for each in self._broker.topics.all_partitions() if isinstance(each, ReplicatedPartition)]

    def _replicas(self) -> list[LocalReplica]:
        return [each.replica for each in self._partitions() if each.replica is not None]

    def _take_roles(self) -> None:
        """Lead and follow what the registers say."""
        if self._has_left:
            return  # the broker stops: it would follow with a log that is about to be closed
        following: dict[int, dict[tuple[UUID, int], LocalReplica]] = {}
        for partition in self._partitions():
            key = TopicPartition(partition.topic.name, partition.index)
            known, topic = self.image.states.get(key), self.image.topics.get(partition.topic.name)
            if known is None or topic is None or not partition.is_local:
                continue
            if topic.assignment.topic_id != partition.topic.id_text:
                continue  # deleted and created again: we have learned that since we looked what is gone
            replica = partition.replica
            if replica is None:
                replicas = topic.assignment.partitions[partition.index]
                try:
                    replica = LocalReplica(self, partition, replicas)
                except Refused:
                    self._damaged.cannot_open(partition)
                    continue
                partition.replica = replica
                replica.assigned(replicas, topic.needed(partition.index))
            replica.register(*known)
            follower = replica.follower
            if follower is not None and follower.state.leader >= 0:
                leaders = following.setdefault(follower.state.leader, {})
                leaders[partition.topic.topic_id, partition.index] = replica
        self._follow(following)

    def _follow(self, following: dict[int, dict[tuple[UUID, int], LocalReplica]]) -> None:
        for leader, replicas in following.items():
            if leader not in self._fetchers:
                fetcher = LeaderFetcher(self, leader)
                self._fetchers[leader] = fetcher, self._broker.spawn(fetcher.run())
            self._fetchers[leader][0].follow(replicas)
        for leader, (fetcher, _) in self._fetchers.items():
            if leader not in following:
                fetcher.follow({})

    # Death certificates

    def is_suspected(self, broker: int) -> bool:
        """Whether we are finding out if this broker is dead."""
        return self.certificates.is_suspected(broker)

    def suspect(self, broker: int) -> None:
        """A connection to or from this broker was lost."""
        self.certificates.suspect(broker)

    # What is done from time to time

    async def _tick(self) -> None:
        checkpoint_at = self._broker.loop.time() + CHECKPOINT_S
        while True:
            await asyncio.sleep(TICK_S)
            now_ms = self.now_ms()
            self.named_brokers.look()
            for replica in self._replicas():
                if replica.log.failed is not None or self._broker.topics.gone is not None:
                    logger.critical("%s cannot be written: the broker stops, and others lead", replica.partition)
                    self._broker.spawn_stop()
                    return
                replica.tick(now_ms)
            if self._broker.loop.time() >= checkpoint_at:
                checkpoint_at += CHECKPOINT_S
                try:
                    self._broker.topics.checkpoint_high_watermarks()
                    await self.last_life.write_down()
                except OSError as error:
                    logger.error("high watermarks and changes in ZooKeeper cannot be noted: %s", error)

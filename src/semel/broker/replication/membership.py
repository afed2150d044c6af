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
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from semel.broker.replication.fetching import LeaderFetcher
from semel.broker.replication.partition import ReplicatedPartition
from semel.broker.replication.producer_ids import ClusterProducerIds
from semel.broker.replication.replica import LocalReplica
from semel.cluster.image_reader import ImageReader
from semel.cluster.peers import Peers
from semel.cluster.session import MultiRefused, NodeExists, SessionState, ZooKeeperError, ZooKeeperSession
from semel.config import ConfigError, topic_values
from semel.errors import InvariantViolation, Refused
from semel.machines.controller.decide import Examine, decide
from semel.machines.controller.image import Image
from semel.machines.controller.registration import BecomeController, Certify, LeaveUncleanly, Register
from semel.machines.replication.values import PartitionState
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
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

#: A port must refuse twice, so long apart.
PROBE_PAUSE_S, PROBE_TIMEOUT_S = 0.1, 1.0
#: How often leaders look for followers that lag, and high watermarks are written down.
TICK_S, CHECKPOINT_S = 0.5, 5.0
RETRY_S = 0.2


class Membership:
    """The cluster as one broker takes part in it: `broker.cluster`."""

    def __init__(
        self, broker: BrokerServer, session: ZooKeeperSession, connect: Callable[[str, int], Any] | None = None
    ) -> None:
        self._broker = broker
        self.session = session
        self.broker_id = broker.node_id
        #: Of this life; -1 before it is registered.
        self.broker_epoch = -1
        self.lag_time_max_ms: int = broker.settings["replica.lag.time.max.ms"]
        self.now_ms = broker.now_ms
        self._event = asyncio.Event()
        self.reader = ImageReader(session, self._settings_of, self._event.set)
        self.image = Image()
        arguments: dict[str, Any] = {} if connect is None else {"connect": connect}
        self.peers = Peers(f"semel-broker-{self.broker_id}", self.address_of, **arguments)
        self._fetchers: dict[int, tuple[LeaderFetcher, asyncio.Task[None]]] = {}
        self.producer_ids = ClusterProducerIds(self)
        self._suspected: set[int] = set()
        self._watching: list[asyncio.Future[None]] = []
        self._must_register = False
        session.add_listener(self._on_session)

    # What handlers and parts ask

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._broker.spawn(work)

    async def beside(self, work: Callable[[], None]) -> None:
        await self._broker.loop.run_in_executor(None, work)

    def address_of(self, broker: int, listener: str | None = None) -> tuple[str, int] | None:
        """A broker's address, on the listener of this name or on the one that brokers use among themselves."""
        registration = self.reader.registrations.get(broker)
        if registration is None:
            return None
        name = listener or self._broker.settings["inter.broker.listener.name"]
        for endpoint in registration.endpoints:
            if name is None or endpoint.listener == name:
                return endpoint.host, endpoint.port
        return None

    def live_brokers(self) -> list[int]:
        return sorted(self.reader.registrations)

    def state_of(self, topic: str, index: int) -> tuple[PartitionState | None, tuple[int, ...]]:
        """The register of a partition, and its replicas."""
        known = self.image.states.get(TopicPartition(topic, index))
        found = self.image.topics.get(topic)
        replicas = found.assignment.partitions.get(index, ()) if found is not None else ()
        return (None if known is None else known[0]), replicas

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

    async def know_brokers(self) -> None:
        """Before replicas are placed: a broker that a client sees may be one that we do not know yet."""
        with suppress(ZooKeeperError):
            await self.read_again()

    async def read_again(self) -> None:
        """Know what is so now: something was refused because what we knew was old."""
        await self.reader.load()
        self.image = self.reader.image()

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

    # Life

    async def prepare(self) -> str:
        """Make the nodes that everybody needs. Returns the cluster's id."""
        session = self.session
        for path in paths.PERSISTENT:
            with suppress(NodeExists):
                await session.create(path)
        with suppress(NodeExists):
            await session.create(paths.CONTROLLER_EPOCH, encode_controller_epoch(0))
        wanted = self._broker.settings["semel.cluster.id"]
        if wanted is None:
            from semel.broker.data_directory import new_id

            wanted = new_id(self._broker.environment.new_uuid)
        with suppress(NodeExists):
            await session.create(paths.CLUSTER_ID, encode_cluster_id(wanted))
        return decode_cluster_id((await session.get(paths.CLUSTER_ID))[0])

    async def load(self) -> None:
        """Read the cluster, and learn which partitions are here, before anything is served."""
        await self.reader.load()
        self.image = self.reader.image()
        self._adopt_topics()

    async def join(self, *, lost_writes: bool) -> None:
        """Register, and take part. `lost_writes`: the machine went down and may have lost what was committed (E4)."""
        inter_broker = self._broker.settings["inter.broker.listener.name"]
        listeners = self._broker.listening.listeners
        chosen = [each for each in listeners if inter_broker in (None, each.name)]
        if not chosen or chosen[0].protocol != "PLAINTEXT":
            raise ConfigError(
                f"inter.broker.listener.name={inter_broker}: brokers need a listener of protocol PLAINTEXT among "
                "themselves; without this setting it is the first of listeners"
            )
        self._broker.spawn(self.reader.run())
        if lost_writes:
            await self._leave_uncleanly()
        await self._register()
        self._broker.spawn(self._run())
        self._broker.spawn(self._tick())
        self.producer_ids.claim_soon()
        self._event.set()

    async def leave(self) -> None:
        """End the session: the others know at once."""
        for replica in self._replicas():
            replica.resign()
        for _, task in self._fetchers.values():
            task.cancel()
        self.peers.close()
        await self.session.close()

    async def _leave_uncleanly(self) -> None:
        while True:
            for multi in decide(self.image, LeaveUncleanly(self.broker_id)):
                try:
                    await self.session.multi(multi.operations)
                except MultiRefused:
                    break
            else:
                return
            await self.reader.load()
            self.image = self.reader.image()

    async def _register(self) -> None:
        """Begin a new life, however often it takes (Z4)."""
        broker = self._broker
        listeners = broker.listening.listeners
        registration = BrokerRegistration(
            tuple(Endpoint(each.name, *each.endpoint) for each in listeners),
            {each.name: each.protocol for each in listeners},
            self.now_ms(),
            broker.rack,
        )
        while True:
            await self.reader.load()
            known = self.reader.life(self.broker_id)
            if known is not None and known[0].directory_id != broker.data.directory_id:
                raise ConfigError(
                    f"node.id={self.broker_id}: the cluster knows this broker with another data directory. Start it "
                    "with that one, or choose another node.id"
                )
            version = None if known is None else known[1]
            stale = self.broker_id in self.reader.registrations
            event = Register(self.broker_id, registration, broker.data.directory_id, version, stale)
            try:
                (multi,) = decide(self.image, event)
                await self.session.multi(multi.operations)
            except MultiRefused:
                continue
            self.broker_epoch = 0 if version is None else version + 1
            break
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
                logger.warning("ZooKeeper: %s", error or type(error).__name__)
                self.reader.refresh()
                self._broker.loop.call_later(RETRY_S, self._event.set)
            except ConfigError as error:
                logger.critical("the broker stops: %s", error)
                self._broker.spawn_stop()
                return

    async def _react(self) -> None:
        if self._must_register:
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
        self._adopt_topics()
        self._take_roles()
        watching, self._watching = self._watching, []
        for waiting in watching:
            if not waiting.done():
                waiting.set_result(None)
        await self._control()

    # Topics and roles

    def _partitions(self) -> list[ReplicatedPartition]:
        return [each for each in self._broker.topics.all_partitions() if isinstance(each, ReplicatedPartition)]

    def _replicas(self) -> list[LocalReplica]:
        return [each.replica for each in self._partitions() if each.replica is not None]

    def _adopt_topics(self) -> None:
        """Know every topic of the image."""
        registry = self._broker.topics
        for name, topic in self.image.topics.items():
            if name not in registry.topics and topic.assignment.topic_id is not None:
                adopted = registry.adopt(
                    name, topic.assignment.topic_id, len(topic.assignment.partitions), self.reader.configs.get(name, {})
                )
                for partition in adopted.partitions:
                    assert isinstance(partition, ReplicatedPartition)
                    partition.replica = None
                    partition.is_local = self.broker_id in topic.assignment.partitions[partition.index]

    def _take_roles(self) -> None:
        """Lead and follow what the registers say."""
        following: dict[int, dict[tuple[UUID, int], LocalReplica]] = {}
        for partition in self._partitions():
            key = TopicPartition(partition.topic.name, partition.index)
            known, topic = self.image.states.get(key), self.image.topics.get(partition.topic.name)
            if known is None or topic is None or not partition.is_local:
                continue
            replica = partition.replica
            if replica is None:
                try:
                    replica = LocalReplica(self, partition, topic.assignment.partitions[partition.index])
                except Refused as error:
                    logger.error("%s has no role: %s", partition, error)
                    continue
                partition.replica = replica
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

    # The controller

    async def _control(self) -> None:
        image = self.image
        if image.controller is None:
            (multi,) = decide(image, BecomeController(self.broker_id, self.now_ms()))
            try:
                await self.session.multi(multi.operations)
                logger.info("broker %d is the controller", self.broker_id)
            except MultiRefused:
                pass  # another was faster
            self.reader.refresh()
        elif image.controller == self.broker_id:
            for multi in decide(image, Examine()):
                try:
                    await self.session.multi(multi.operations)
                except MultiRefused:
                    # What we know is old. It is read again, and then we decide again.
                    self.reader.refresh()
                    return

    # Death certificates

    def suspect(self, broker: int) -> None:
        """A connection to or from this broker was lost."""
        if broker not in self._suspected and broker in self.reader.registrations:
            self._suspected.add(broker)
            self.spawn(self._certify(broker))

    async def _certify(self, broker: int) -> None:
        try:
            epoch = self.image.broker_epoch(broker)
            if not await self.peers.probe(broker, PROBE_TIMEOUT_S):
                return
            await asyncio.sleep(PROBE_PAUSE_S)
            if not await self.peers.probe(broker, PROBE_TIMEOUT_S):
                return
            (multi,) = decide(self.image, Certify(broker, epoch))
            with suppress(ZooKeeperError):
                await self.session.multi(multi.operations)
                logger.warning("broker %d refuses connections: certified dead", broker)
            self.reader.refresh()
        finally:
            self._suspected.discard(broker)

    # What is done from time to time

    async def _tick(self) -> None:
        checkpoint_at = self._broker.loop.time() + CHECKPOINT_S
        while True:
            await asyncio.sleep(TICK_S)
            now_ms = self.now_ms()
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
                except OSError as error:
                    logger.error("high watermarks cannot be written: %s", error)

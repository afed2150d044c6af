"""What this broker knows of the cluster, read from ZooKeeper and kept true by watches (rule Z7).

Guarantees:

- A node is read again after every change, and a state that is older than the known one is never taken. Nor is one of
  another topic of the same name, before that topic is known.
- After the connection was lost everything is read again: watches do not outlive a connection.
- `changed` is called after what was read is in the image, once for everything that was read together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from semel.cluster.session import (
    ConnectionLoss,
    EventType,
    NoNode,
    SessionExpired,
    SessionState,
    Stat,
    WatchEvent,
    ZooKeeperError,
    ZooKeeperSession,
)
from semel.machines.controller.image import Broker, Image, Topic
from semel.machines.replication.values import PartitionState
from semel.machines.values import TopicPartition, is_topic_name
from semel.machines.znodes import paths
from semel.machines.znodes.values import (
    INT32_MAX,
    BrokerLife,
    BrokerRegistration,
    TopicAssignment,
    UnreadableZnode,
    decode_config,
    decode_controller,
    decode_controller_epoch,
    decode_state,
)

logger = logging.getLogger(__name__)

#: What a node is about: ("ids",), ("id", n), ("life", n), ("topic", name), ("state", name, partition), ...
Key = tuple[Any, ...]
#: How many nodes are read at once.
READ_AT_ONCE = 200
#: How long what ZooKeeper refuses to show waits for the next attempt.
READ_AGAIN_S = 2.0


class ImageReader:
    """Reads and watches. `settings_of` gives (min.insync.replicas, unclean allowed) for a topic's own settings.

    `broker_configs` are the names under /config/brokers that are watched.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        settings_of: Callable[[Mapping[str, str]], tuple[int, bool]],
        changed: Callable[[], None],
        broker_configs: tuple[str, ...] = (),
        saw: Callable[[str, Stat], None] = lambda path, stat: None,
    ) -> None:
        self._session = session
        self._settings_of = settings_of
        self._changed = changed
        #: Told every node that was read.
        self._saw = saw
        self._dirty: dict[Key, None] = {}
        self._wake = asyncio.Event()
        #: One reading at a time: the answer to an older question must not replace that to a newer one.
        self._one_at_a_time = asyncio.Lock()
        self.registrations: dict[int, BrokerRegistration] = {}
        #: Which session has registered each broker.
        self.owners: dict[int, int] = {}
        self._lives: dict[int, tuple[BrokerLife, int]] = {}
        self._assignments: dict[str, tuple[TopicAssignment, int]] = {}
        #: The names of topics by their ids.
        self._by_id: dict[str, str] = {}
        self.configs: dict[str, dict[str, str]] = {}
        #: Topics that have a node with settings.
        self._with_config: set[str] = set()
        self._deleting: frozenset[str] = frozenset()
        self._broker_config_names = broker_configs
        #: What was changed of brokers' settings, by the name of the node.
        self.broker_configs: dict[str, dict[str, str]] = {}
        self._states: dict[TopicPartition, tuple[PartitionState, int]] = {}
        self._created: dict[Key, int] = {}
        self._controller: int | None = None
        self._controller_epoch = (0, 0)
        #: Nodes that cannot be read, and why. They are read again when they change.
        self._unreadable: dict[Key, str] = {}
        #: Names of nodes where brokers' numbers are expected, which were told.
        self._nobodys: set[str] = set()
        session.add_listener(self._on_session)

    # What is known

    def image(self) -> Image:
        """As it is now. What changes later changes a later image."""
        brokers = {
            number: Broker(
                number,
                version,
                number in self.registrations,
                life.leaving,
                self.registrations[number].rack if number in self.registrations else None,
            )
            for number, (life, version) in self._lives.items()
        }
        topics = {}
        for name, (assignment, version) in self._assignments.items():
            if name in self.configs:
                needed, unclean = self._settings_of(self.configs[name])
                topics[name] = Topic(name, assignment, version, needed, unclean, name in self._with_config)
        epoch, version = self._controller_epoch
        return Image(brokers, topics, dict(self._states), self._controller, epoch, version, self._deleting)

    def life(self, broker: int) -> tuple[BrokerLife, int] | None:
        return self._lives.get(broker)

    def lives(self) -> dict[int, BrokerLife]:
        """Of every broker that the cluster has ever had."""
        return {broker: life for broker, (life, _) in self._lives.items()}

    def unreadable(self) -> list[str]:
        """The nodes that cannot be read, and why."""
        return list(self._unreadable.values())

    # Reading

    async def load(self, *, strict: bool = False) -> None:
        """Read everything. Raises what ZooKeeper answers instead.

        A node that cannot be read is told, and what was known of it goes on; `strict` raises then.
        """
        await self._session.sync("/")
        self._mark_all()
        await self._read_dirty(keep_going=False, strict=strict)

    async def run(self) -> None:
        """Read what has changed, for as long as the broker lives."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._session.state is SessionState.CONNECTED and self._dirty:
                await self._read_dirty(keep_going=True)
                self._changed()

    def refresh(self, *, after_s: float = 0.0) -> None:
        """Something was refused because what we know is old: read it again, at once or after a pause."""
        if after_s:
            asyncio.get_running_loop().call_later(after_s, self._mark_all)
        else:
            self._mark_all()

    def refresh_brokers(self) -> None:
        """Who lives and who controls may have changed: only that is read again, however many partitions there are."""
        for key in (("ids",), ("lives",), ("controller",), ("epoch",)):
            self._mark(key)
        for number in {*self.registrations, *self._lives}:
            self._mark(("id", number))
            self._mark(("life", number))

    def _mark_all(self) -> None:
        self.refresh_brokers()
        self._mark(("topics",))
        self._mark(("deleting",))
        for name in self._broker_config_names:
            self._mark(("broker_config", name))
        for name in self._assignments:
            self._mark(("topic", name))
            self._mark(("config", name))

    def _mark(self, key: Key) -> None:
        self._dirty[key] = None
        self._wake.set()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._mark_all()

    async def _read_dirty(self, *, keep_going: bool, strict: bool = False) -> None:
        async with self._one_at_a_time:
            await self._read_all_dirty(keep_going=keep_going, strict=strict)

    async def _read_all_dirty(self, *, keep_going: bool, strict: bool) -> None:
        while self._dirty:
            keys = list(self._dirty)[:READ_AT_ONCE]
            for key in keys:
                del self._dirty[key]
            outcomes = await asyncio.gather(*map(self._read, keys), return_exceptions=True)
            for key, outcome in zip(keys, outcomes, strict=True):
                if isinstance(outcome, (ConnectionLoss, SessionExpired)) and keep_going:
                    self._dirty[key] = None  # read again when the session is back
                elif isinstance(outcome, ZooKeeperError) and keep_going:
                    self._cannot_read(key, outcome)
                elif isinstance(outcome, UnreadableZnode) and not strict:
                    logger.error("%s", outcome)
                    self._unreadable[key] = str(outcome)
                elif isinstance(outcome, BaseException):
                    raise outcome
                else:
                    self._unreadable.pop(key, None)
            if keep_going and self._session.state is not SessionState.CONNECTED:
                return

    def _cannot_read(self, key: Key, error: ZooKeeperError) -> None:
        """Its ACL was changed, or a folder is gone. Then there is no watch either: it is tried again after a pause."""
        text = f"{' '.join(map(str, key))} in ZooKeeper cannot be read: {error}"
        if self._unreadable.get(key) != text:
            logger.error("%s; what was known of it stays", text)
            self._unreadable[key] = text
        asyncio.get_running_loop().call_later(READ_AGAIN_S, self._mark, key)

    async def _get(self, key: Key, path: str) -> tuple[bytes, Stat] | None:
        """A node with a watch; None if it is not there, and then the watch waits for it."""

        def fired(event: WatchEvent) -> None:
            if event.type is not EventType.NONE:
                self._mark(key)

        try:
            # One question for a node that is there: after a failure there are thousands.
            found = await self._session.get(path, fired)
        except NoNode:
            if await self._session.exists(path, fired) is None:
                return None
            try:
                found = await self._session.get(path)  # it came in between
            except NoNode:
                return None  # gone meanwhile: the watch has fired
        self._saw(path, found[1])
        return found

    async def _children(self, key: Key, path: str) -> list[str]:
        def fired(event: WatchEvent) -> None:
            if event.type is not EventType.NONE:
                self._mark(key)

        return (await self._session.get_children(path, fired))[0]

    async def _read(self, key: Key) -> None:
        await getattr(self, f"_read_{key[0]}")(*key[1:])

    async def _read_ids(self) -> None:
        here = self._brokers_in(paths.BROKER_IDS, await self._children(("ids",), paths.BROKER_IDS))
        for number in here | self.registrations.keys():
            self._mark(("id", number))
            self._mark(("life", number))

    async def _read_lives(self) -> None:
        here = self._brokers_in(paths.LIVES, await self._children(("lives",), paths.LIVES))
        for number in here - self._lives.keys():
            self._mark(("life", number))

    def _brokers_in(self, folder: str, names: list[str]) -> set[int]:
        """The brokers that have a node in a folder. Another node is nobody's, so it keeps nobody from anything."""
        numbers = {int(name) for name in names if name.isdecimal() and len(name) <= len(str(INT32_MAX))}
        numbers = {number for number in numbers if number <= INT32_MAX and str(number) in names}
        for name in {*names} - {str(number) for number in numbers} - self._nobodys:
            logger.warning("%s/%s in ZooKeeper is left alone: it has no broker's number", folder, name)
            self._nobodys.add(name)
        return numbers

    async def _read_id(self, number: int) -> None:
        path = paths.broker(number)
        found = await self._get(("id", number), path)
        if found is None:
            self.registrations.pop(number, None)
            self.owners.pop(number, None)
        else:
            self.registrations[number] = BrokerRegistration.decode(found[0], path)
            self.owners[number] = found[1].ephemeral_owner

    async def _read_life(self, number: int) -> None:
        path = paths.life(number)
        found = await self._get(("life", number), path)
        if found is None:
            self._lives.pop(number, None)
        else:
            self._lives[number] = BrokerLife.decode(found[0], path), found[1].version

    async def _read_controller(self) -> None:
        found = await self._get(("controller",), paths.CONTROLLER)
        self._controller = None if found is None else decode_controller(found[0])

    async def _read_epoch(self) -> None:
        found = await self._get(("epoch",), paths.CONTROLLER_EPOCH)
        if found is not None:
            self._controller_epoch = decode_controller_epoch(found[0]), found[1].version

    async def _read_topics(self) -> None:
        names = set(await self._children(("topics",), paths.TOPICS))
        for name in names - self._assignments.keys():
            self._mark(("topic", name))
            self._mark(("config", name))
        for name in self._assignments.keys() - names:
            self._forget_topic(name)

    async def _read_deleting(self) -> None:
        self._deleting = frozenset(await self._children(("deleting",), paths.DELETED_TOPICS))

    async def _read_broker_config(self, name: str) -> None:
        path = paths.config("brokers", name)
        found = await self._get(("broker_config", name), path)
        self.broker_configs[name] = {} if found is None else decode_config(found[0], path)

    def _forget_topic(self, name: str) -> None:
        self._forget_id(name)
        self._assignments.pop(name, None)
        self.configs.pop(name, None)
        self._with_config.discard(name)
        self._forget_states(name)
        for key in [each for each in self._unreadable if name in each[1:2]]:
            del self._unreadable[key]

    def _forget_id(self, name: str) -> None:
        known = self._assignments.get(name)
        if known is not None and known[0].topic_id is not None:
            self._by_id.pop(known[0].topic_id, None)

    def _forget_states(self, name: str) -> None:
        for partition in [each for each in self._states if each.topic == name]:
            del self._states[partition]
            self._created.pop(("state", *partition), None)

    async def _read_topic(self, name: str) -> None:
        path = paths.topic(name)
        found = await self._get(("topic", name), path)
        if found is None:
            self._forget_topic(name)
            return
        known = self._assignments.get(name)
        try:
            assignment = TopicAssignment.decode(found[0], path)
            self._check_topic(name, assignment, path)
        except UnreadableZnode:
            # It stays as it was. Its registers go on, and must not be older here than in ZooKeeper.
            for number in () if known is None else known[0].partitions:
                self._mark(("state", name, number))
            raise
        if known is not None and known[0].topic_id != assignment.topic_id:
            self._forget_states(name)  # another topic of this name: its registers begin again at version 0
        self._forget_id(name)
        self._assignments[name] = assignment, found[1].version
        if assignment.topic_id is not None:
            self._by_id[assignment.topic_id] = name
        for number in assignment.partitions:
            self._mark(("state", name, number))

    def _check_topic(self, name: str, assignment: TopicAssignment, path: str) -> None:
        """`UnreadableZnode` for what cannot be beside what is known."""
        topic_id, known = assignment.topic_id, self._assignments.get(name)
        if not is_topic_name(name):
            raise UnreadableZnode(f"{path} in ZooKeeper cannot be read: this is no name of a topic")
        twin = None if topic_id is None else self._by_id.get(topic_id)
        if twin is not None and twin != name:
            # Requests name topics by id: records of one would reach the other.
            raise UnreadableZnode(f"{path} in ZooKeeper cannot be read: it has the topic_id of {paths.topic(twin)}")
        if known is not None and known[0].topic_id == topic_id:
            gone = sorted(known[0].partitions.keys() - assignment.partitions.keys())
            if gone:
                # Nothing takes partitions away from a topic. Their data must not go by mistake.
                raise UnreadableZnode(f"{path} in ZooKeeper cannot be read: partitions {gone} are missing")

    async def _read_config(self, name: str) -> None:
        path = paths.config("topics", name)
        found = await self._get(("config", name), path)
        self.configs[name] = {} if found is None else decode_config(found[0], path)
        (self._with_config.discard if found is None else self._with_config.add)(name)

    async def _read_state(self, name: str, number: int) -> None:
        key, path, partition = ("state", name, number), paths.state(name, number), TopicPartition(name, number)
        found = await self._get(key, path)
        if found is None:
            self._states.pop(partition, None)
            return
        data, stat = found
        if self._created.setdefault(key, stat.czxid) != stat.czxid:
            # The register of another topic of this name. Which one that is must be known before: it is read first, and
            # this is read again after it.
            self._created[key] = stat.czxid
            self._states.pop(partition, None)
            self._mark(("topic", name))
            return
        known = self._states.get(partition)
        if known is not None and stat.version <= known[1]:
            return
        self._states[partition] = decode_state(data, path), stat.version

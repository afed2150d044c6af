"""All topics of this broker: what exists, under which id and settings.

Guarantees:

- A topic exists if and only if the metadata store says so: directories follow the store, never the reverse.
- A topic's id is never reused.
- Changed settings hold from the next append or read on.
- When the data directory is removed, nothing more is served from it or written into it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from semel.broker.data_directory import OF_A_CLUSTER, partition_directories
from semel.broker.stored.metadata_store import PRODUCER_ID_BLOCK, TOPICS, LocalMetadataStore
from semel.broker.stored.topics import StoredTopics, TopicChanges, TopicRow, topic_row
from semel.broker.topics.internal import TRANSACTION_STATE
from semel.broker.topics.logs import TopicLogs
from semel.broker.topics.partition import Partition
from semel.broker.topics.topic import CLUSTER_METADATA, Topic, check_topic_name, flat_name
from semel.config import TOPIC, ConfigError, Values, topic_values
from semel.errors import ErrorCode, Refused
from semel.log.checkpoints import topic_id_from_text
from semel.log.damage import DirectoryGone
from semel.log.file_names import LOG_SUFFIX
from semel.log.manifest import Manifest

logger = logging.getLogger(__name__)

#: Beside the stored topics: the cluster that keeps them in its ZooKeeper since this broker is a member.
JOINED = "joined"

#: Awaited between two pieces of long work: others are served meanwhile.
Rest = Callable[[], Awaitable[None]]


async def no_rest() -> None:
    """For work that is short."""


class TopicRegistry:
    """The topics by name and by id, and every change to them."""

    def __init__(
        self,
        store: LocalMetadataStore,
        settings: Values,
        logs: TopicLogs,
        partition_type: type[Partition] = Partition,
    ) -> None:
        self._store = store
        self._partition_type = partition_type
        self._stored = StoredTopics(store)
        self._settings = settings
        self._logs = logs
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[uuid.UUID, Topic] = {}
        #: Names as Kafka's metrics write them, and the topic of each.
        self._flat_names: dict[str, str] = {}
        #: Called after topics or partitions were added or removed: assignments of groups depend on them.
        self.listeners: list[Callable[[], None]] = []
        #: Set once the data directory is no longer there.
        self.gone: DirectoryGone | None = None

    # Reading

    def get(self, name: str) -> Topic:
        """The topic of this name."""
        topic = self.topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def partition(self, name: str, index: int) -> Partition:
        """A partition by topic name and number."""
        topic = self.get(name)
        # A number out of range is for the topic to refuse.
        return topic.partitions[index] if 0 <= index < len(topic.partitions) else topic.partition(index)

    def by_topic_id(self, topic_id: uuid.UUID) -> Topic:
        """The topic of this id."""
        topic = self.by_id.get(topic_id)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic_id}")
        return topic

    @property
    def metadata_changes(self) -> int:
        """How often topics were created, changed or deleted: the offset that the metadata has reached."""
        return self._stored.version + 1

    def all_partitions(self) -> Iterator[Partition]:
        """Every partition of every topic."""
        for topic in list(self.topics.values()):
            yield from topic.partitions

    def highest_producer_id(self) -> int:
        """The highest producer id that a partition remembers on disk; -1 if there is none."""
        return self._logs.highest_producer_id(self.all_partitions())

    # Starting and stopping

    def read_stored(self) -> None:
        """Read from the store what exists. Refuse if the directories say otherwise. Nothing is changed on disk."""
        stored = self._stored.read()
        if self._logs.files.exists(self._logs.directory / OF_A_CLUSTER):
            cluster = self._logs.files.read(self._logs.directory / OF_A_CLUSTER).decode(errors="replace").strip()
            raise ConfigError(
                f"{self._logs.directory} belongs to a broker of cluster {cluster}, whose topics are in ZooKeeper: set "
                "zookeeper.connect"
            )
        if stored is None:
            self._refuse_to_forget_topics()
        try:
            for name, row in (stored or {"topics": {}})["topics"].items():
                configs = _legal_settings(name, row["configs"])
                topic = Topic(name, uuid.UUID(row["id"]), configs, topic_values(self._settings, configs))
                self._stored.rows[name] = topic_row(topic.topic_id, row["partitions"], configs)
                self._add(topic, row["partitions"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._store.damage_error(TOPICS, f"it does not describe topics ({error!r})") from None
        if self._store.get(PRODUCER_ID_BLOCK)[1] < 0:
            self._refuse_to_repeat_producer_ids()

    def load(self) -> None:
        """Get ready to open the logs; after a crash, recover all of them."""
        self._logs.load(self.all_partitions())

    async def compare_with_manifest(self) -> None:
        """Open the logs that are not as the last clean stop left them."""
        await self._logs.compare_with_manifest(
            self.all_partitions(), lambda partition: self.topics.get(partition.topic.name) is partition.topic
        )

    def _refuse_to_forget_topics(self) -> None:
        """Without the store's entry there are no topics. A partition's directory shows that there were."""
        for directory in partition_directories(self._logs.files, self._logs.directory):
            raise self._store.missing_error(TOPICS, f"{directory} holds the records of a topic")

    def _refuse_to_repeat_producer_ids(self) -> None:
        """Without the store's entry ids begin at 0. A coordinator's record shows that some were handed out."""
        for partition in self.topics[TRANSACTION_STATE].partitions if TRANSACTION_STATE in self.topics else ():
            for name, size_bytes in self._logs.file_sizes(partition).items():
                if name.endswith(LOG_SUFFIX) and size_bytes:
                    log = partition.directory / name
                    raise self._store.missing_error(PRODUCER_ID_BLOCK, f"{log} names producers that have ids")

    def close(self) -> Manifest | None:
        """Close every open log. Returns what the next start has to find, or None if this stop is not clean."""
        if self.gone is not None:
            self._logs.stop_removing()
            return None  # whatever is in its place now is not ours to write to
        return self._logs.close(self.all_partitions(), self._store.entries)

    def checkpoint_recovery_points(self) -> None:
        """Write down how far each log is known to be on disk, so that recovery begins there."""
        if self.gone is None:
            self._logs.checkpoint_recovery_points(self.all_partitions())

    def checkpoint_high_watermarks(self) -> None:
        """Write down how far each replicated log is known to be committed."""
        if self.gone is None:
            self._logs.checkpoint_high_watermarks(self.all_partitions())

    # Changing

    def adopt(self, name: str, topic_id: str, partition_count: int, overrides: dict[str, str]) -> Topic:
        """Take over a topic of the cluster. Its partitions are opened when they get a role."""
        configs = _legal_settings(name, overrides)
        topic = Topic(name, topic_id_from_text(topic_id), configs, topic_values(self._settings, configs))
        self._add(topic, partition_count)
        self._call_listeners()
        return topic

    def adopt_partitions(self, topic: Topic, partition_count: int) -> list[Partition]:
        """The new partitions of a topic of the cluster."""
        before = len(topic.partitions)
        self._add_partitions(topic, partition_count)
        self._call_listeners()
        return topic.partitions[before:]

    def adopt_settings(self, topic: Topic, overrides: dict[str, str]) -> None:
        """Use the settings that a topic of the cluster has now."""
        topic.overrides = dict(overrides)
        _apply(topic, topic_values(self._settings, _legal_settings(topic.name, overrides)))

    async def drop(self, topics: list[Topic], *, keeps_data: bool = False) -> None:
        """Topics of the cluster were deleted: their data here goes as well, or is set aside."""
        await self._remove(topics, no_rest, keeps_data=keeps_data)
        self._call_listeners()

    async def drop_partition(self, partition: Partition) -> None:
        """A replica was moved away from this broker: its data here goes."""
        log = partition.release()
        if log is not None:
            for segment in log.segments:
                segment.close()
        self._logs.forget(partition)
        partition.wake_watchers()
        await self._logs.remove_partition(partition)

    async def set_aside(self, partition: Partition) -> Path | None:
        """A replica is made anew: what is left of its files goes to another name, which is returned."""
        place = await self._logs.set_aside(partition)
        partition.release()  # only now: until then nobody opens it
        return place

    def create(self, name: str, partition_count: int, overrides: dict[str, str] | None = None) -> Topic:
        """Create a topic at once, or refuse as Kafka does. Clients' topics are created by `create_all`."""
        topic = self.new_topic(name, overrides)
        self._refuse_if_gone()
        self._logs.set_aside_strays([(name, 0, partition_count)])
        self._stored.save({name: _row(topic, partition_count)})
        self._add(topic, partition_count)
        self._call_listeners()
        return topic

    def new_topic(
        self, name: str, overrides: dict[str, str] | None = None, planned_names: Mapping[str, str] | None = None
    ) -> Topic:
        """A topic that could be created now. `planned_names` are the flat names of others that will be created."""
        self.check_new_name(name, planned_names)
        return Topic(name, self._new_id(), dict(overrides or {}), self.values_with(overrides or {}))

    def check_new_name(self, name: str, planned_names: Mapping[str, str] | None = None) -> None:
        """Refuse a name that no new topic can have."""
        check_topic_name(name)
        if name == CLUSTER_METADATA:
            raise Refused(ErrorCode.INVALID_REQUEST, f"no topic is called {name}: it stands for the cluster's metadata")
        if name in self.topics:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        # Kafka's metric names cannot tell '.' and '_' apart, so it lets only one of them exist.
        flat = flat_name(name)
        other = self._flat_names.get(flat) or (planned_names or {}).get(flat)
        if other is not None:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} collides with existing topic {other!r}")

    async def create_all(self, new: list[tuple[Topic, int]], rest: Rest) -> None:
        """Create topics, with one write to the store."""
        spans = [(topic.name, 0, count) for topic, count in new]
        await self._save({topic.name: _row(topic, count) for topic, count in new}, spans)
        for topic, count in new:
            self._add(topic, count)
            await rest()
        self._call_listeners()

    async def delete_all(self, topics: list[Topic], rest: Rest) -> None:
        """Delete topics and their data, with one write to the store. Nobody waits for the data to be gone."""
        await self._save({topic.name: None for topic in topics})
        await self._remove(topics, rest)
        self._call_listeners()

    async def _remove(self, topics: list[Topic], rest: Rest, *, keeps_data: bool = False) -> None:
        partitions = []
        for topic in topics:
            del self.topics[topic.name]
            del self.by_id[topic.topic_id]
            self._flat_names.pop(flat_name(topic.name), None)
            for partition in topic.partitions:
                log = partition.retire()
                if log is not None:
                    for segment in log.segments:
                        segment.close()
                partitions.append(partition)
                self._logs.forget(partition)
                partition.wake_watchers()
                await rest()
        if keeps_data:
            for partition in partitions:
                await self._logs.set_aside(partition)
        else:
            await self._logs.remove(partitions, {topic.name for topic in topics})

    async def grow_all(self, grown: list[tuple[Topic, int]], rest: Rest) -> None:
        """Give topics more partitions, with one write to the store."""
        spans = [(topic.name, len(topic.partitions), count) for topic, count in grown]
        await self._save({topic.name: _row(topic, count) for topic, count in grown}, spans)
        for topic, count in grown:
            self._add_partitions(topic, count)
            await rest()
        self._call_listeners()

    async def configure_all(self, configured: list[tuple[Topic, dict[str, str]]], rest: Rest) -> None:
        """Replace topics' own settings with one write to the store. They were checked by `values_with`."""
        await self._save(
            {topic.name: topic_row(topic.topic_id, len(topic.partitions), own) for topic, own in configured}
        )
        for topic, overrides in configured:
            topic.overrides = overrides
            _apply(topic, self.values_with(overrides))
            await rest()

    async def change_defaults(self, settings: Values, rest: Rest) -> None:
        """Use these settings of the broker from now on; a topic follows where it has none of its own."""
        self._settings = self._logs.settings = settings
        verifies_transactions = settings["transaction.partition.verification.enable"]
        for topic in list(self.topics.values()):
            _apply(topic, topic_values(settings, topic.overrides))
            for partition in topic.partitions:
                if partition.open_log is not None:
                    partition.open_log.verifies_transactions = verifies_transactions
            await rest()

    def values_with(self, overrides: dict[str, str]) -> Values:
        """The settings of a topic with these overrides, or why it cannot have them."""
        try:
            for name in overrides:
                TOPIC.row(name)
            values = topic_values(self._settings, overrides)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from None
        least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
        if least > most:
            why = f"min.compaction.lag.ms={least} is more than max.compaction.lag.ms={most}"
            raise Refused(ErrorCode.INVALID_CONFIG, why)
        return values

    # When files are removed under the running broker

    def give_up(self, why: DirectoryGone) -> None:
        """Serve nothing more: the data directory was removed or replaced."""
        self.gone = why
        for partition in self.all_partitions():
            partition.give_up(why)

    def give_up_if_removed(self, partition: Partition) -> None:
        """Take a partition offline whose files were removed."""
        log = partition.open_log
        if log is not None and log.failed is None and self._logs.are_gone(log):
            why = DirectoryGone(log.directory)
            logger.error("%s-%d is offline: %s", partition.topic.name, partition.index, why.why)
            self._logs.expect(partition)
            partition.give_up(why)

    def _refuse_if_gone(self) -> None:
        if self.gone is not None:
            raise self.gone

    # Inside

    def _new_id(self) -> uuid.UUID:
        while (topic_id := self._logs.environment.new_uuid()) in self.by_id:
            continue
        return topic_id

    def _add(self, topic: Topic, partition_count: int) -> None:
        self._add_partitions(topic, partition_count)
        self.topics[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        self._flat_names[flat_name(topic.name)] = topic.name

    def _add_partitions(self, topic: Topic, partition_count: int) -> None:
        for index in range(len(topic.partitions), partition_count):
            directory = self._logs.directory / f"{topic.name}-{index}"
            topic.partitions.append(self._partition_type(topic, index, directory, self._logs.open, self._logs.files))

    async def _save(self, changes: TopicChanges, new: list[tuple[str, int, int]] | None = None) -> None:
        """Store what will be, before it is: what the disk refuses has not happened.

        `new`: for new partitions the topic, the first of them and the one after the last.
        """
        self._refuse_if_gone()
        await self._stored.save_beside(changes, partial(self._logs.set_aside_strays, new or []))

    def _call_listeners(self) -> None:
        for listener in self.listeners:
            listener()


def _apply(topic: Topic, values: Values) -> None:
    topic.values = values
    for partition in topic.partitions:
        if partition.open_log is not None:
            partition.open_log.config = values


def _row(topic: Topic, partition_count: int) -> TopicRow:
    return topic_row(topic.topic_id, partition_count, topic.overrides)


def _legal_settings(topic: str, configs: dict[str, str]) -> dict[str, str]:
    """The stored settings that this version knows. For any other the default is used, with a warning."""
    legal = {}
    for name, value in configs.items():
        try:
            TOPIC.row(name).read(value)
        except ConfigError as error:
            logger.warning("topic %s: a stored setting is not legal any more, its default is used: %s", topic, error)
        else:
            legal[name] = value
    return legal

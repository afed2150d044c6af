"""The broker as a whole: its parts, and its life from start to stop.

Guarantees:

- Nothing is served before every log that needs recovery is recovered.
- The number of connections, the size of a request, and the memory of all requests and all unread answers are bounded.
- A clean stop answers the requests being served, flushes every log and leaves the clean-shutdown mark. A stop after a
  broken invariant does neither: the next start recovers from what is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Executor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from semel.broker.after_reply import AfterReply
from semel.broker.background import Background
from semel.broker.changes import Changes
from semel.broker.connections import Connections
from semel.broker.data_directory import METADATA, DataDirectory
from semel.broker.dispatch import Dispatcher
from semel.broker.durability import Durability, FsyncDurability, OsDurability
from semel.broker.fetch_sessions import FetchSessions
from semel.broker.flusher import Flusher
from semel.broker.handlers import SERVED
from semel.broker.listening import Listening
from semel.broker.meter import RequestMeter
from semel.broker.net.memory import MemoryPool, UnreadAnswers
from semel.broker.net.turns import Turns
from semel.broker.observability.audit import Audit
from semel.broker.observability.metrics import Metrics
from semel.broker.observability.request_times import RequestTimes
from semel.broker.quotas import Quotas
from semel.broker.record_checks import RecordChecks
from semel.broker.stored.metadata_store import PRODUCER_ID_BLOCK, TOPICS, LocalMetadataStore
from semel.broker.stored.stores import Stores
from semel.broker.topics.internal import CONSUMER_OFFSETS, TRANSACTION_STATE, InternalTopics
from semel.broker.topics.logs import TopicLogs
from semel.broker.topics.partition import Partition
from semel.broker.topics.registry import TopicRegistry
from semel.config import ConfigError, Values
from semel.environment import MACHINE, Environment
from semel.errors import InvariantViolation, Refused
from semel.log.damage import DirectoryGone
from semel.log.files import Files
from semel.wire.apis import APIS, INIT_PRODUCER_ID_TWO_PHASE_VERSION, ApiKey

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.coordinators.groups import GroupShell
    from semel.broker.coordinators.transactions import TransactionShell
    from semel.broker.replication.membership import Membership
    from semel.cluster.session import ZooKeeperSession

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0

_Result = TypeVar("_Result")


class BrokerServer:
    """Everything one broker process has. Handlers get it as their first argument."""

    def __init__(
        self,
        settings: Values,
        *,
        files: Files | None = None,
        environment: Environment = MACHINE,
        open_session: Callable[[Values], Awaitable[ZooKeeperSession]] | None = None,
    ) -> None:
        self.settings = settings
        #: Opens the session with ZooKeeper, where that is not the one that zookeeper.connect names.
        self._open_session = open_session
        self.environment = environment
        self.now_ms = environment.now_ms
        #: The disk.
        self.files = files or Files(environment.threads)
        self.node_id: int = settings["node.id"]
        if settings["broker.id"] is not None and "node.id" not in settings.explicit and settings["broker.id"] >= 0:
            self.node_id = settings["broker.id"]
        self.rack: str | None = settings["broker.rack"]
        #: Of a broker that is alone: it leads everything, and there are no elections.
        self.leader_epoch = 0
        #: The cluster that this broker is a member of; None if it is alone, so that serving costs nothing more.
        self.cluster: Membership | None = None
        self.metrics = Metrics()
        #: Tells of what was denied.
        self.audit = Audit(self)
        arrival_timeout_s = settings["semel.request.arrival.timeout.ms"] / 1000
        self.pool = MemoryPool(settings["queued.max.request.bytes"], arrival_timeout_s)
        self.unread = UnreadAnswers(settings["semel.queued.max.response.bytes"], arrival_timeout_s)
        #: How connections and long requests share the thread.
        self.turns = Turns(environment.work_clock_s)
        self._beside: Executor | None = None
        #: Makes changes to topics, settings, quotas and credentials, one at a time.
        self.changes = Changes(self.handle_failure)
        self.fetch_sessions = FetchSessions(
            settings["max.incremental.fetch.session.cache.slots"], self.now_ms, environment.chance.randint
        )
        self.fetch_max_bytes: int = settings["fetch.max.bytes"]
        self.fatal_error: BaseException | None = None
        #: Steps that come after a reply and before the next request.
        self.after_reply = AfterReply(lambda: self.fatal_error is None)
        self.dispatcher = Dispatcher(self)
        self.connections = Connections(self)
        self.listening = Listening(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self.loop: asyncio.AbstractEventLoop
        self.stopped: asyncio.Event
        self.data: DataDirectory
        self.stores: Stores
        self.topics: TopicRegistry
        self.internal_topics: InternalTopics
        #: Enforces quotas; None while there are none, so that serving costs nothing more.
        self.quotas: Quotas | None = None
        #: Decides who may do what; None without an authorizer, so that serving costs nothing more.
        self.access: AccessControl | None = None
        #: Measures requests, for the quotas and for the metrics port; None where there is neither.
        self.meter: RequestMeter | None = None
        self._times: dict[int, RequestTimes] | None = {} if settings["semel.metrics.port"] >= 0 else None
        #: Checks large batches on threads.
        self.record_checks = RecordChecks(environment.threads)
        #: Decides when a write counts as durable, and the order of disk, effects and reply.
        self.durability: Durability

    # Life

    async def start(self, prepare: Callable[[BrokerServer], Awaitable[None]] | None = None) -> None:
        """Open the data, recover it if needed, listen. `prepare` is done before anybody is let in."""
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._callback_failed)
        self.stopped = asyncio.Event()
        directories = self.settings["log.dirs"]
        if len(directories) != 1:
            raise ConfigError(f"log.dirs={','.join(directories)}: give one directory, more are not supported")
        if "classic" not in self.settings["group.coordinator.rebalance.protocols"]:
            raise ConfigError("group.coordinator.rebalance.protocols: the classic protocol cannot be left out")
        try:
            # The address first: a broker that cannot bind it leaves nothing on disk.
            await self.listening.bind()
            path = Path(directories[0])
            if self.settings["zookeeper.connect"]:
                await self._meet_cluster(path)
            else:
                self._own_directory(path, self.settings["semel.cluster.id"])
            await self._open(prepare)
        except BaseException as error:
            if "data" in self.__dict__:
                self.data.unlock()
            self.listening.close()
            if self.cluster is not None:
                from semel.broker.replication.to_zookeeper import why_no_start

                await self.cluster.leave()
                if (why := why_no_start(error, self.settings)) is not None:
                    raise why from error
            raise

    def _own_directory(self, path: Path, cluster_id: str | None, remedy: str | None = None) -> DataDirectory:
        in_zookeeper = bool(self.settings["zookeeper.connect"])
        self.data = DataDirectory(
            path,
            self.node_id,
            cluster_id,
            self.files,
            self.environment.new_uuid,
            in_zookeeper=in_zookeeper,
            remedy=remedy,
        )
        return self.data

    async def _meet_cluster(self, path: Path) -> None:
        """Connect to the cluster's ZooKeeper, and learn to which cluster the data directory belongs."""
        from semel.broker.replication import joining, older_zookeeper
        from semel.broker.replication.inter_broker import PeerDoor, inter_broker_listener
        from semel.broker.replication.membership import Membership
        from semel.broker.replication.to_zookeeper import open_session

        door = await PeerDoor(self, inter_broker_listener(self.settings, self.listening.listeners)).prepare()
        begins_with = None
        if joining.holds_own_topics(self.files, path):
            joining.ask_for_consent(path, given=self.settings[joining.CONSENT])
            begins_with = self._own_directory(path, self.settings["semel.cluster.id"])
        session = await (self._open_session or open_session)(self.settings)
        self.cluster = Membership(self, session, path, door=door)
        if begins_with is None:
            await older_zookeeper.refuse_without_cluster(session, self, path)
        cluster_id = await self.cluster.prepare(begins_with)
        if begins_with is None:
            remedy = await older_zookeeper.remedy(session, self.node_id, cluster_id)
            self._own_directory(path, cluster_id, remedy)
        await self.cluster.recognise()

    async def _open(self, prepare: Callable[[BrokerServer], Awaitable[None]] | None) -> None:
        data = self.data
        manifest = data.manifest()
        store = LocalMetadataStore(data.path / METADATA, self.files, self.environment.threads)
        if manifest is not None:
            store.require(manifest.entries)
        self.stores = Stores(store, self.node_id, self.settings, lambda: self.topics.highest_producer_id())
        self.settings = self.stores.broker_settings.values
        if self.stores.broker_settings.changes_tls:
            self.listening.use_tls(await self.listening.read_tls(self.settings))
        self.update_quotas()
        if self.settings["authorizer.class.name"]:
            from semel.broker.access.control import AccessControl

            self.access = AccessControl(self)
        with_fsync = self.settings["semel.durability"] == "fsync"
        if self.cluster is not None:
            from semel.broker.replication.durability import ReplicatedDurability, ReplicatedFsyncDurability

            kind = ReplicatedFsyncDurability if with_fsync else ReplicatedDurability
            self.durability = kind(Flusher(self.environment.threads), self.after_reply, self.spawn)
        elif with_fsync:
            self.durability = FsyncDurability(Flusher(self.environment.threads), self.spawn)
        else:
            self.durability = OsDurability(Flusher(self.environment.threads), self.after_reply)
        clean = data.was_closed_cleanly
        logs = TopicLogs(
            data.path,
            self.settings,
            self.files,
            self.environment,
            self.durability,
            clean=clean,
            manifest=manifest,
            manifest_before=data.manifest_before(),
            is_replicated=self.cluster is not None,
        )
        if self.cluster is None:
            self.topics = TopicRegistry(store, self.settings, logs)
            self.topics.read_stored()
        else:
            await self._open_cluster(store, logs)
        self.internal_topics = InternalTopics(self.topics, lambda: self.settings)
        store.check_rest(read=(TOPICS, PRODUCER_ID_BLOCK))
        # A start that is refused up to here has changed nothing, so the next one is refused as well.
        data.open_for_writing()
        self.topics.load()
        self._background = Background(self)
        if prepare is not None:
            await prepare(self)
        await self.listening.start()
        if self.cluster is not None:
            await self.cluster.join(logs)
        else:
            self.spawn(self._load_coordinators())
        self.spawn(self.topics.compare_with_manifest())
        self._background.start()

    async def _open_cluster(self, store: LocalMetadataStore, logs: TopicLogs) -> None:
        """Learn from ZooKeeper which topics there are, and which partitions are here."""
        from semel.broker.replication import joining
        from semel.broker.replication.partition import ReplicatedPartition

        assert self.cluster is not None
        if joining.holds_own_topics(self.files, self.data.path):
            await joining.bring_topics(self, store, logs)
        await joining.finish_joining(self.cluster.session, self.data)
        self.topics = TopicRegistry(store, self.settings, logs, ReplicatedPartition)
        self.stores.producer_ids = self.cluster.producer_ids
        await self.cluster.load()
        self.data.note_cluster()

    @cached_property
    def transactions(self) -> TransactionShell:
        """The transaction coordinator, created at its first use: a start does not wait for it."""
        from semel.broker.coordinators.transactions import TransactionShell

        return TransactionShell(self)

    @cached_property
    def groups(self) -> GroupShell:
        """The group coordinator, created at its first use."""
        from semel.broker.coordinators.groups import GroupShell

        return GroupShell(self)

    async def _load_coordinators(self) -> None:
        """Load what the last run left: prepared transactions must be finished, open ones must time out."""
        if CONSUMER_OFFSETS in self.topics.topics:
            await self.groups.host.load_stored()
        if TRANSACTION_STATE in self.topics.topics:
            await self.transactions.host.load_stored()

    async def stop(self) -> None:
        """Stop cleanly: take no new work, answer what is being served, flush, leave the mark."""
        if self._stopping:
            await self.stopped.wait()
            return
        self._stopping = True
        try:
            await self._stop()
        finally:
            # Whatever failed: a broker that is to stop and does not would keep its session and its place.
            self.stopped.set()

    async def _stop(self) -> None:
        if self.cluster is not None and self.fatal_error is None:
            try:
                await self.cluster.hand_over()
            except Exception as error:
                self.handle_failure(error)  # whatever it is, a stop goes on
        self.listening.close()
        self._background.stop()
        if self.cluster is not None:
            await self.cluster.leave()
        await self.connections.close_all(STOP_TIMEOUT_S)
        await self.changes.finish(STOP_TIMEOUT_S)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.audit.close()
        if self.fatal_error is None:
            self.after_reply.run_all()
        for name in ("transactions", "groups"):
            if name in self.__dict__:
                getattr(self, name).host.stop()
        if self.fatal_error is None:
            try:
                left = self.topics.close()
                if left is not None:
                    self.data.close_cleanly(left)
            except OSError:
                logger.exception("the disk failed while stopping; the next start will recover the logs")
        self.stores.metadata.close()
        self.durability.flusher.close()
        self.record_checks.close()
        if self._beside is not None:
            self._beside.shutdown(wait=False, cancel_futures=True)
        self.data.unlock()

    def look_after_data(self) -> None:
        """Stop serving if the data directory was removed or replaced: writes to the removed files would be lost, and
        nobody would know."""
        if self.topics.gone is None and not self.data.is_there():
            why = DirectoryGone(str(self.data.path))
            logger.critical("%s", why.why)
            self.topics.give_up(why)

    def spawn_stop(self) -> None:
        """Stop in the next turn of the loop; for signal handlers."""
        self.loop.create_task(self.stop())

    def spawn(self, coroutine: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Run a task beside the requests. A failure is logged, a broken invariant stops the broker."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    async def beside(self, work: Callable[[], _Result]) -> _Result:
        """Run work that uses no state of the broker on a thread, one piece at a time."""
        if self._beside is None:
            self._beside = self.environment.threads(1, "semel-beside")
        return await self.loop.run_in_executor(self._beside, work)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.handle_failure(error)

    def handle_failure(self, error: BaseException) -> None:
        """Log an unexpected failure. A broken invariant stops the broker, and nothing more is written."""
        if isinstance(error, InvariantViolation):
            logger.critical("invariant broken, the broker stops: %s", error, exc_info=error)
            if self.fatal_error is None:
                self.fatal_error = error
                self.spawn_stop()
        else:
            logger.error("unexpected failure", exc_info=error)

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Treat what a timer or a callback raised like what a request raised."""
        error = context.get("exception")
        if isinstance(error, InvariantViolation):
            self.handle_failure(error)
        else:
            loop.default_exception_handler(context)

    def open_soon(self, partitions: Iterable[Partition]) -> None:
        """Open the logs of new partitions beside the requests, so that the first write does not wait for it."""
        self.spawn(self._open_each(list(partitions)))

    async def _open_each(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            if self.topics.topics.get(partition.topic.name) is partition.topic:
                try:
                    _ = partition.log
                except Refused as error:
                    logger.error("%s", error)
            await asyncio.sleep(0)

    def look_after_connections(self) -> None:
        """Refuse requests that stall, and take back the memory of silent connections."""
        now_s = self.loop.time()
        self.pool.look(now_s)
        self.unread.look(now_s)

    # What handlers ask

    @property
    def cluster_client_id(self) -> str:
        """What this broker calls itself among brokers."""
        from semel.cluster.peers import PEER_CLIENT_ID

        return f"{PEER_CLIENT_ID}{self.node_id}"

    def serves(self, api_key: int) -> bool:
        """Whether an API is served."""
        if self.cluster is not None:
            from semel.broker.replication.limits import SERVED_IN_A_CLUSTER

            return api_key in SERVED_IN_A_CLUSTER
        return api_key in SERVED

    def highest_version(self, api_key: int) -> int:
        """The newest version served of an API."""
        if api_key == ApiKey.INIT_PRODUCER_ID and self.settings["transaction.two.phase.commit.enable"]:
            return INIT_PRODUCER_ID_TWO_PHASE_VERSION
        return APIS[api_key].max_version

    def update_quotas(self) -> None:
        """Enforce the quotas as they are now. What was counted so far still counts."""
        if not self.stores.quotas:
            self.quotas = None
        elif self.quotas is None:
            self.quotas = Quotas(self.stores.quotas, self.settings, self.metrics, self.now_ms)
            if self.cluster is not None:
                self.quotas.is_of_a_broker = self.cluster.is_of_a_broker
        is_measured = self.quotas is not None or self._times is not None
        self.meter = RequestMeter(self.quotas, self._times, self.environment.work_clock_ns) if is_measured else None

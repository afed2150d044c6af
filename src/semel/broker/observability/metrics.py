"""Metrics under Kafka's names: plain integers, rendered when they are scraped.

Whatever can be counted at a scrape is counted then, so that serving a request costs next to nothing more.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from semel.broker.replication.counts import ReplicaCounts
from semel.wire.apis import APIS

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer

#: One sample: its labels, braces included, and its value.
Sample = tuple[str, float]

_TOPICS = "kafka_server_brokertopicmetrics_"
_REQUESTS = "kafka_network_requestmetrics_"
_SOCKETS = "kafka_server_socket_server_metrics_"
_REPLICAS = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"
_TRANSACTIONS = "kafka_server_transaction_coordinator_metrics_"
_GROUPS = "kafka_server_group_coordinator_metrics_"
_GROUP_MANAGER = "kafka_coordinator_group_groupmetadatamanager_"


class Metrics:
    """What happened since the start."""

    __slots__ = (
        "audit_lines_left_out",
        "authentications",
        "bytes_in",
        "bytes_out",
        "connections_created",
        "connections_expired",
        "denied",
        "failed_authentications",
        "failed_fetch",
        "failed_produce",
        "messages_in",
        "quota_throttles",
        "refused",
        "sessions_expired",
        "stalled",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.failed_produce = 0
        self.failed_fetch = 0
        #: Connections closed because of what they sent.
        self.refused = 0
        #: Those among them that stopped in the middle of a request, or of reading an answer.
        self.stalled = 0
        self.connections_created = 0
        #: How often a client had to wait because it was above its quota.
        self.quota_throttles = 0
        #: Connections closed because they were idle.
        self.connections_expired = 0
        #: By listener: who showed who they are, and who could not.
        self.authentications: Counter[str] = Counter()
        self.failed_authentications: Counter[str] = Counter()
        #: Denied requests by API.
        self.denied: Counter[int] = Counter()
        #: Lines of the audit log that were not written because there were too many.
        self.audit_lines_left_out = 0
        #: Connections closed because their client did not authenticate again in time.
        self.sessions_expired = 0


class _Page:
    """Prometheus' text format, one family at a time."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def family(self, name: str, kind: str, meaning: str) -> None:
        self.lines.append(f"# HELP {name} {meaning}")
        self.lines.append(f"# TYPE {name} {kind}")

    def counter(self, name: str, meaning: str, *values: float | Sample) -> None:
        self._row(name, "counter", meaning, values)

    def gauge(self, name: str, meaning: str, *values: float | Sample) -> None:
        self._row(name, "gauge", meaning, values)

    def _row(self, name: str, kind: str, meaning: str, values: tuple[float | Sample, ...]) -> None:
        self.family(name, kind, meaning)
        for value in values:
            labels, number = value if isinstance(value, tuple) else ("", value)
            self.lines.append(f"{name}{labels} {number}")


def render(broker: BrokerServer) -> str:
    """All metrics in Prometheus' text format."""
    page = _Page()
    _traffic(page, broker)
    _requests(page, broker)
    _connections(page, broker)
    _security(page, broker)
    _partitions(page, broker)
    _transactions(page, broker)
    _groups(page, broker)
    return "\n".join(page.lines) + "\n"


def _traffic(page: _Page, broker: BrokerServer) -> None:
    metrics = broker.metrics
    page.counter(_TOPICS + "messagesin_total", "Records appended.", metrics.messages_in)
    page.counter(_TOPICS + "bytesin_total", "Bytes of record batches appended.", metrics.bytes_in)
    page.counter(_TOPICS + "bytesout_total", "Bytes of record batches fetched.", metrics.bytes_out)
    page.counter(
        _TOPICS + "failedproducerequests_total",
        "Partitions of produce requests that were refused.",
        metrics.failed_produce,
    )
    page.counter(
        _TOPICS + "failedfetchrequests_total", "Partitions of fetch requests that were refused.", metrics.failed_fetch
    )


def _requests(page: _Page, broker: BrokerServer) -> None:
    from semel.broker.observability.request_times import BOUNDS_MS

    routes = sorted(broker.dispatcher.routes.items())
    page.counter(
        _REQUESTS + "requests_total",
        "Requests by API.",
        *((f'{{request="{route.api.name}"}}', route.count) for _, route in routes),
    )
    times = (broker.meter.times if broker.meter is not None else None) or {}
    timed = [(route.api.name, times[key]) for key, route in routes if key in times]
    name = _REQUESTS + "totaltimems"
    page.family(name, "histogram", "Milliseconds from a request's arrival to its answer, waiting included.")
    for api, taken in timed:
        so_far = 0
        for bound, count in zip((*BOUNDS_MS, "+Inf"), taken.counts, strict=True):
            so_far += count
            page.lines.append(f'{name}_bucket{{request="{api}",le="{bound}"}} {so_far}')
        page.lines.append(f'{name}_sum{{request="{api}"}} {taken.sum_ms}')
        page.lines.append(f'{name}_count{{request="{api}"}} {so_far}')
    page.gauge(
        name + "_max",
        "The longest a request took since the start.",
        *((f'{{request="{api}"}}', taken.longest_ms) for api, taken in timed),
    )


def _connections(page: _Page, broker: BrokerServer) -> None:
    metrics, pool = broker.metrics, broker.pool
    page.gauge(_SOCKETS + "connection_count", "Open connections.", len(broker.connections))
    page.counter(_SOCKETS + "connection_creation_total", "Connections let in.", metrics.connections_created)
    page.counter(
        _SOCKETS + "connection_close_total",
        "Connections that ended.",
        metrics.connections_created - len(broker.connections),
    )
    page.counter(
        "kafka_network_socketserver_expiredconnectionskilledcount",
        "Connections closed because they were idle.",
        metrics.connections_expired,
    )
    page.counter(
        "semel_refused_connections_total",
        "Connections closed for what they sent, or for their number.",
        metrics.refused,
    )
    page.gauge(
        "kafka_network_memorypool_memorypoolused",
        "Bytes of requests in hand, but for small ones.",
        pool.used_bytes,
    )
    page.gauge("semel_unread_answer_bytes", "Bytes of answers that clients have not read.", broker.unread.used_bytes)
    page.counter(
        "semel_stalled_connections_total",
        "Connections closed because they did not go on with a request, or with reading an answer others waited for.",
        metrics.stalled,
    )
    page.gauge(
        "semel_throttled_connections",
        "Connections not served: they wait for memory or for others to read, do not read, or are above their quota.",
        ('{by="memory"}', pool.waiting),
        ('{by="readers"}', broker.unread.waiting),
        ('{by="reader"}', broker.connections.not_read),
        ('{by="quota"}', broker.connections.muted),
    )
    page.counter("semel_throttles_total", "Times a connection had to wait for memory.", pool.refusals)
    page.counter("semel_quota_throttles_total", "Times a client was above its quota.", metrics.quota_throttles)
    page.gauge(
        "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions.", len(broker.fetch_sessions)
    )


def _security(page: _Page, broker: BrokerServer) -> None:
    metrics = broker.metrics
    for name, meaning, counted in (
        ("successful", "Connections whose client showed who it is.", metrics.authentications),
        ("failed", "Connections whose client could not show who it is.", metrics.failed_authentications),
    ):
        page.counter(
            f"{_SOCKETS}{name}_authentication_total",
            meaning,
            *((f'{{listener="{listener.name}"}}', counted[listener.name]) for listener in broker.listening.listeners),
        )
    page.counter(
        "semel_denied_requests_total",
        "Requests that access rules denied, wholly or in part.",
        *((f'{{request="{APIS[key].name}"}}', count) for key, count in sorted(metrics.denied.items())),
    )
    page.counter(
        "semel_audit_lines_left_out_total",
        "Lines of the audit log that were not written because there were too many.",
        metrics.audit_lines_left_out,
    )


def _partitions(page: _Page, broker: BrokerServer) -> None:
    topics = broker.topics.topics.values()
    partitions = sum(len(topic.partitions) for topic in topics)
    shown = ReplicaCounts(partitions, partitions) if broker.cluster is None else _of_the_cluster(broker.cluster)
    page.gauge(_REPLICAS + "partitioncount", "Partitions.", shown.here)
    page.gauge(_REPLICAS + "leadercount", "Partitions led here.", shown.led)
    page.gauge(_REPLICAS + "underreplicatedpartitions", "Partitions lacking replicas.", shown.under_replicated)
    page.gauge(_CONTROLLER + "activecontrollercount", "Active controllers.", int(shown.is_controller))
    page.gauge(_CONTROLLER + "globaltopiccount", "Topics.", len(topics))
    if broker.cluster is not None:
        _replication(page, broker.cluster, shown)
    offline = producers = 0
    sizes: list[Sample] = []
    ends: list[Sample] = []
    starts: list[Sample] = []
    stable_lags: list[Sample] = []
    for partition in broker.topics.all_partitions():
        log = partition.open_log
        if log is None:
            offline += partition.offline is not None
            continue
        offline += bool(log.failed)
        producers += len(log.producers)
        labels = f'{{topic="{partition.topic.name}",partition="{partition.index}"}}'
        stable_lags.append((labels, log.high_watermark - log.last_stable_offset))
        sizes.append((labels, log.size_bytes))
        ends.append((labels, log.end_offset))
        starts.append((labels, log.log_start_offset))
    if broker.cluster is None:
        page.gauge(_CONTROLLER + "offlinepartitionscount", "Partitions that stopped.", offline)
    page.gauge(_REPLICAS + "produceridcount", "Producer ids that partitions remember, one for each.", producers)
    page.gauge("kafka_log_log_size", "Bytes of the log.", *sizes)
    page.gauge("kafka_log_log_logendoffset", "Next offset.", *ends)
    page.gauge("kafka_log_log_logstartoffset", "First offset.", *starts)
    page.gauge(
        "kafka_cluster_partition_laststableoffsetlag",
        "Offsets that read_committed readers wait for: an open transaction holds them back.",
        *stable_lags,
    )


def _of_the_cluster(cluster: Membership) -> ReplicaCounts:
    from semel.broker.replication.counts import count_replicas

    counts = count_replicas(cluster.image, cluster.broker_id)
    counts.is_controller = counts.is_controller and cluster.reaches_zookeeper
    return counts


def _replication(page: _Page, cluster: Membership, shown: ReplicaCounts) -> None:
    page.gauge(
        _CONTROLLER + "offlinepartitionscount",
        "Partitions of the cluster that nobody leads, told by the controller; 0 elsewhere.",
        shown.offline if shown.is_controller else 0,
    )
    page.gauge(_CONTROLLER + "globalpartitioncount", "Partitions of the cluster.", shown.partitions)
    page.gauge(_CONTROLLER + "activebrokercount", "Brokers that live.", shown.brokers)
    page.gauge(
        _CONTROLLER + "preferredreplicaimbalancecount",
        "Partitions of the cluster that another than their first replica leads.",
        shown.not_preferred,
    )
    page.gauge(
        _REPLICAS + "underminisrpartitioncount",
        "Partitions led here with fewer replicas in sync than min.insync.replicas.",
        shown.under_min_isr,
    )
    page.gauge(
        _REPLICAS + "atminisrpartitioncount",
        "Partitions led here with exactly as many replicas in sync as min.insync.replicas.",
        shown.at_min_isr,
    )
    page.gauge(_REPLICAS + "reassigningpartitions", "Partitions led here that are being moved.", shown.moving)
    page.counter(_REPLICAS + "isrshrinks_total", "Times a replica led here left the in-sync set.", cluster.isr_shrinks)
    page.counter(
        _REPLICAS + "isrexpands_total", "Times a replica led here entered the in-sync set.", cluster.isr_expands
    )


def _transactions(page: _Page, broker: BrokerServer) -> None:
    from semel.machines.transactions.states import OPEN, TransactionState

    states: Counter[TransactionState] = Counter()
    oldest_ms: int | None = None
    # A coordinator that was not used yet has nothing to show: a scrape does not create it.
    shell = broker.__dict__.get("transactions")
    for metadata in () if shell is None else shell.coordinator.entries():
        states[metadata.state] += 1
        if metadata.state in OPEN and (oldest_ms is None or metadata.start_ms < oldest_ms):
            oldest_ms = metadata.start_ms
    page.gauge(
        _TRANSACTIONS + "transactional_id_count",
        "Transactional ids by the state of their last transaction.",
        *((f'{{state="{state.title}"}}', states[state]) for state in TransactionState),
    )
    page.gauge(
        _TRANSACTIONS + "open_transaction_count",
        "Transactions that were begun and are not complete.",
        sum(states[state] for state in OPEN),
    )
    page.gauge(
        _TRANSACTIONS + "oldest_open_transaction_age_ms",
        "Milliseconds since the oldest open transaction began; 0 without one.",
        0 if oldest_ms is None else max(broker.now_ms() - oldest_ms, 0),
    )


def _groups(page: _Page, broker: BrokerServer) -> None:
    from semel.machines.groups.classic.group import ClassicGroup, ClassicGroupState
    from semel.machines.groups.consumer.group import ConsumerGroupState

    classic: Counter[ClassicGroupState] = Counter()
    consumer: Counter[ConsumerGroupState] = Counter()
    offsets = pending = 0
    shell = broker.__dict__.get("groups")
    if shell is not None:
        offsets, pending = len(shell.coordinator.offsets), shell.coordinator.offsets.pending_count
        for group in shell.coordinator.groups.values():
            if isinstance(group, ClassicGroup):
                classic[group.state] += 1
            else:
                consumer[group.state] += 1
    page.gauge(
        _GROUPS + "group_count",
        "Groups by the protocol they speak.",
        ('{protocol="classic"}', classic.total()),
        ('{protocol="consumer"}', consumer.total()),
    )
    page.gauge(
        _GROUPS + "consumer_group_count",
        "Groups of the consumer protocol by state.",
        *((f'{{state="{state.value.lower()}"}}', consumer[state]) for state in ConsumerGroupState),
    )
    page.gauge(_GROUP_MANAGER + "numgroups", "Groups of the classic protocol.", classic.total())
    for state in ClassicGroupState:
        name = f"{_GROUP_MANAGER}numgroups{state.value.lower()}"
        page.gauge(name, f"Groups of the classic protocol that are {state.value}.", classic[state])
    page.gauge(_GROUP_MANAGER + "numoffsets", "Committed offsets.", offsets)
    page.gauge("semel_pending_offsets", "Offsets that count once their transaction is committed.", pending)

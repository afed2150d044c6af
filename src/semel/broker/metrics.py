"""Counters an operator of Kafka recognises, kept as plain integers and rendered only when somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer


class Metrics:
    """What happened since the start."""

    __slots__ = ("bytes_in", "bytes_out", "failed_fetch", "failed_produce", "messages_in", "refused")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.failed_produce = 0
        self.failed_fetch = 0
        #: Connections closed because of what they sent.
        self.refused = 0


def render(broker: BrokerServer) -> str:
    """All metrics in Prometheus' text format."""
    metrics = broker.metrics
    lines: list[str] = []

    def row(name: str, kind: str, meaning: str, *values: tuple[str, float]) -> None:
        lines.append(f"# HELP {name} {meaning}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{labels} {value}" for labels, value in values)

    topic_metrics = "kafka_server_brokertopicmetrics_"
    row(topic_metrics + "messagesin_total", "counter", "Records appended.", ("", metrics.messages_in))
    row(topic_metrics + "bytesin_total", "counter", "Bytes of record batches appended.", ("", metrics.bytes_in))
    row(topic_metrics + "bytesout_total", "counter", "Bytes of record batches fetched.", ("", metrics.bytes_out))
    row(
        topic_metrics + "failedproducerequests_total",
        "counter",
        "Partitions of produce requests that were refused.",
        ("", metrics.failed_produce),
    )
    row(
        topic_metrics + "failedfetchrequests_total",
        "counter",
        "Partitions of fetch requests that were refused.",
        ("", metrics.failed_fetch),
    )
    row(
        "kafka_network_requestmetrics_requests_total",
        "counter",
        "Requests by API.",
        *((f'{{request="{route.api.name}"}}', route.count) for _, route in sorted(broker.dispatcher.routes.items())),
    )
    row(
        "kafka_server_socket_server_metrics_connection_count",
        "gauge",
        "Open connections.",
        ("", broker.connection_count),
    )
    row("semel_refused_connections_total", "counter", "Connections closed for what they sent.", ("", metrics.refused))
    row(
        "kafka_network_memorypool_memorypoolused",
        "gauge",
        "Bytes of requests in hand beyond the connections' first buffers.",
        ("", broker.pool.used_bytes),
    )
    row(
        "kafka_server_fetchsessioncache_numincrementalfetchsessions",
        "gauge",
        "Fetch sessions.",
        ("", len(broker.fetch_sessions)),
    )
    topics = broker.topics.topics.values()
    partitions = sum(len(topic.partitions) for topic in topics)
    row("kafka_server_replicamanager_partitioncount", "gauge", "Partitions.", ("", partitions))
    row("kafka_server_replicamanager_leadercount", "gauge", "Partitions led here.", ("", partitions))
    row("kafka_server_replicamanager_underreplicatedpartitions", "gauge", "Partitions lacking replicas.", ("", 0))
    row("kafka_controller_kafkacontroller_activecontrollercount", "gauge", "Active controllers.", ("", 1))
    row("kafka_controller_kafkacontroller_globaltopiccount", "gauge", "Topics.", ("", len(topics)))
    offline = 0
    sizes: list[tuple[str, float]] = []
    ends: list[tuple[str, float]] = []
    starts: list[tuple[str, float]] = []
    stable_lags: list[tuple[str, float]] = []
    for partition in broker.topics.all_partitions():
        log = partition.opened
        if log is None:
            offline += partition.offline is not None
            continue
        offline += bool(log.failed)
        labels = f'{{topic="{partition.topic.name}",partition="{partition.index}"}}'
        stable_lags.append((labels, log.high_watermark - log.last_stable_offset))
        sizes.append((labels, log.size_bytes))
        ends.append((labels, log.end_offset))
        starts.append((labels, log.log_start_offset))
    row("kafka_controller_kafkacontroller_offlinepartitionscount", "gauge", "Partitions that stopped.", ("", offline))
    row("kafka_log_log_size", "gauge", "Bytes of the log.", *sizes)
    row("kafka_log_log_logendoffset", "gauge", "Next offset.", *ends)
    row("kafka_log_log_logstartoffset", "gauge", "First offset.", *starts)
    row(
        "kafka_cluster_partition_laststableoffsetlag",
        "gauge",
        "Offsets that read_committed readers wait for: an open transaction holds them back.",
        *stable_lags,
    )
    return "\n".join(lines) + "\n"

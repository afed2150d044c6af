"""From start to stop: kill -9, clean stops, the lock, the command line, embedding, metrics."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import confluent_kafka
import pytest

import semel
from semel.broker import embedded
from semel.broker.data_directory import DataDirectoryInUse
from semel.broker.embedded import Broker
from semel.config import ConfigError
from semel.errors import ErrorCode
from semel.properties import read_properties
from semel.wire.messages.transactions import InitProducerIdRequest
from tests.broker.raw import Raw, batch
from tests.support.dump_log import complaints
from tests.support.processes import BrokerProcess
from tests.support.requirements import CHECKOUT
from tests.support.waiting import until

# kill -9


def test_what_was_acknowledged_is_there_once_after_kill_9_again_and_again(broker_process: BrokerProcess) -> None:
    acknowledged: list[bytes] = []
    for round_ in range(4):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker_process.bootstrap_servers, "linger.ms": 1, "log_level": 0}
        )
        enough = 200 * (round_ + 1)

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is None:
                acknowledged.append(message.value())

        stop = threading.Event()

        def write(producer: confluent_kafka.Producer = producer, stop: threading.Event = stop, n: int = round_) -> None:
            number = 0
            while not stop.is_set():
                try:
                    producer.produce("t", b"%d-%d" % (n, number), on_delivery=delivered)
                    number += 1
                except BufferError:
                    pass
                producer.poll(0.001)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            until(lambda n=enough: len(acknowledged) >= n, what="acknowledgements")
            broker_process.kill9()
        finally:
            stop.set()
            writer.join()
        producer.purge()
        producer.flush(5)
        broker_process.start()
    with Raw(broker_process.bootstrap_servers) as raw:
        stored: list[bytes | None] = []
        while values := raw.values("t", offset=len(stored)):
            stored += values
    assert len(stored) == len(set(stored)), "a record is there twice"
    assert not set(acknowledged) - set(stored), "an acknowledged record is gone"


def test_kafkas_own_reader_finds_nothing_wrong_after_kill_9(broker_process: BrokerProcess, kafka_jars: None) -> None:
    with Raw(broker_process.bootstrap_servers) as raw:
        raw.create("t", segment_bytes="2000", index_interval_bytes="200")
        for number in range(60):
            raw.produce("t", batch(b"%d" % number * 20, producer_id=5, producer_epoch=0, base_sequence=number))
        raw.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000))
    broker_process.kill9()
    broker_process.start()
    assert broker_process.stop() == 0
    assert complaints(broker_process.data) == []


def test_producer_ids_are_not_given_again_after_kill_9(broker_process: BrokerProcess) -> None:
    seen: set[int] = set()
    for _ in range(3):
        with Raw(broker_process.bootstrap_servers) as raw:
            for _ in range(5):
                taken = raw.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)).producer_id
                assert taken not in seen
                seen.add(taken)
        broker_process.kill9()
        broker_process.start()


def test_a_retry_across_kill_9_is_still_recognised(broker_process: BrokerProcess) -> None:
    sent = batch(b"once", producer_id=77, producer_epoch=0, base_sequence=0)
    with Raw(broker_process.bootstrap_servers) as raw:
        raw.create("t")
        assert raw.produce("t", sent).base_offset == 0
    broker_process.kill9()
    broker_process.start()
    with Raw(broker_process.bootstrap_servers) as raw:
        again = raw.produce("t", sent)
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
        assert raw.values("t") == [b"once"]


# Clean stops and the data directory


def test_a_clean_stop_ends_with_0_and_leaves_its_mark(broker_process: BrokerProcess) -> None:
    with Raw(broker_process.bootstrap_servers) as raw:
        raw.create("t")
        raw.produce("t", batch())
        assert not (broker_process.data / ".kafka_cleanshutdown").exists()
        assert broker_process.stop() == 0
    assert (broker_process.data / ".kafka_cleanshutdown").exists()


def test_two_brokers_never_share_a_data_directory(tmp_path: Path) -> None:
    with Broker(tmp_path), pytest.raises(DataDirectoryInUse):
        Broker(tmp_path).start()
    with Broker(tmp_path):
        pass


def test_a_data_directory_of_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    with Broker(tmp_path):
        pass
    stored = read_properties((tmp_path / "meta.properties").read_text())
    assert set(stored) == {"cluster.id", "directory.id", "node.id", "version"}
    assert (stored["node.id"], stored["version"]) == ("1", "1")
    with pytest.raises(ConfigError, match="belongs to node 1"):
        Broker(tmp_path, settings={"node.id": 2}).start()
    with pytest.raises(ConfigError, match="belongs to cluster"):
        Broker(tmp_path, settings={"semel.cluster.id": "other"}).start()


def test_after_a_clean_stop_logs_are_opened_only_when_they_are_needed(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=20)
        for partition in range(20):
            raw.produce("t", batch(), partition=partition)
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.fetch("t", partition=3)
        opened = [one.index for one in broker.server.topics.topics["t"].partitions if one.open_log is not None]
        assert opened == [3]


# The command line


def semel_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "semel", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(CHECKOUT / "src"), "PATH": "/usr/bin:/bin"},
    )


def test_semel_topic_creates_lists_describes_alters_and_deletes(broker: Broker) -> None:
    def topic(*arguments: str) -> str:
        done = semel_command("topic", *arguments, "--bootstrap", broker.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "orders" in topic("create", "orders", "--partitions", "2", "--set", "retention.ms=5000")
    assert [row["topic"] for row in json.loads(topic("list", "--json"))] == ["orders"]
    topic("alter", "orders", "--partitions", "3", "--unset", "retention.ms", "--set", "cleanup.policy=compact")
    described = json.loads(topic("describe", "orders", "--json"))[0]
    assert described["settings"] == {"cleanup.policy": "compact"}
    assert [row["next_offset"] for row in described["partitions"]] == [0, 0, 0]
    assert "cleanup.policy=compact" in topic("describe", "orders")
    topic("delete", "orders", "--yes")
    assert json.loads(topic("list", "--json")) == []


def test_errors_are_one_line_and_an_exit_code(broker: Broker, tmp_path: Path) -> None:
    missing = semel_command("topic", "describe", "nowhere", "--bootstrap", broker.bootstrap_servers)
    assert missing.returncode == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in missing.stderr
    wrong = semel_command("broker", "start", "--set", "log.segment.byte=1", "--data", str(tmp_path))
    assert wrong.returncode == 2
    assert "did you mean 'log.segment.bytes'" in wrong.stderr
    taken = semel_command("broker", "start", "--listen", "127.0.0.1:0", "--data", str(broker.data_dir))
    assert taken.returncode == 2
    assert "in use by another broker" in taken.stderr
    assert semel_command("broker", "start", "--nonsense").returncode == 2


def test_a_properties_file_is_overruled_by_set_and_listen(tmp_path: Path) -> None:
    from semel.cli.broker import gather_settings

    file = tmp_path / "server.properties"
    file.write_text("# Kafka's own names\nnum.partitions=3\nlog.dirs=/elsewhere\nlisteners=PLAINTEXT://:9999\n")
    settings = gather_settings(None, None, str(file), ["num.partitions=4"])
    assert (settings["num.partitions"], settings["log.dirs"]) == (4, ("/elsewhere",))
    assert settings["listeners"] == ("PLAINTEXT://:9999",)
    settings = gather_settings("127.0.0.1:0", "/here", str(file), [])
    assert (settings["listeners"], settings["log.dirs"]) == (("PLAINTEXT://127.0.0.1:0",), ("/here",))


@pytest.mark.parametrize(
    ("listen", "data", "sets", "file", "why"),
    [
        (None, "/here", ["log.dirs=/a,/b"], "", r"--data /here and --set log\.dirs=/a,/b say the same thing"),
        (None, "/here", ["log.dir=/a"], "", r"--data /here and --set log\.dir=/a say the same thing"),
        ("127.0.0.1:0", None, ["listeners=PLAINTEXT://:1"], "", "--listen 127.0.0.1:0 and --set listeners=PLAINTEXT"),
        (None, "/here", [], "log.dirs=/a,/b", r"has several log\.dirs; change them there"),
    ],
)
def test_what_is_said_twice_is_refused_and_nothing_is_ignored(
    tmp_path: Path, listen: str | None, data: str | None, sets: list[str], file: str, why: str
) -> None:
    from semel.cli.broker import gather_settings

    path = tmp_path / "server.properties"
    path.write_text(file)
    with pytest.raises(ConfigError, match=why):
        gather_settings(listen, data, str(path), sets)


def test_the_help_names_the_nouns() -> None:
    shown = semel_command("--help").stdout
    assert "broker" in shown
    assert "topic" in shown
    assert "--listen" in semel_command("broker", "start", "--help").stdout


# Embedding


def test_the_examples_in_the_documentation_run() -> None:
    for module in (semel, embedded):
        done = doctest.testmod(module)
        assert done.attempted > 0
        assert done.failed == 0


def test_a_broker_without_a_directory_leaves_nothing_behind() -> None:
    with semel.Broker() as broker, Raw(broker) as raw:
        raw.create("t")
        directory = broker.data_dir
        assert directory.exists()
    assert not directory.exists()


def test_the_broker_runs_on_asyncios_own_loop_where_uvloop_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with semel.Broker() as broker, Raw(broker) as raw:
        assert type(broker.server.loop).__module__.startswith("asyncio")
        raw.create("t")
        raw.produce("t", batch(b"x" * 200_000))
        assert raw.values("t") == [b"x" * 200_000]


def test_an_error_at_the_start_comes_out_of_start() -> None:
    with pytest.raises(ConfigError, match=r"listener SASL_SSL: ssl\.keystore\.location"):
        Broker(settings={"listeners": "SASL_SSL://127.0.0.1:0"}).start()


# Metrics


def test_metrics_have_the_names_an_operator_of_kafka_knows(tmp_path: Path) -> None:
    with Broker(tmp_path, settings={"semel.metrics.port": 0}) as broker, Raw(broker) as raw:
        raw.create("t")
        raw.produce("t", batch(b"a", b"b"))
        address = f"http://127.0.0.1:{broker.server.listening.metrics_port}"
        with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{address}/other", timeout=10)
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert samples["kafka_server_brokertopicmetrics_messagesin_total"] == "2"
    assert samples['kafka_network_requestmetrics_requests_total{request="Produce"}'] == "1"
    assert samples['kafka_log_log_logendoffset{topic="t",partition="0"}'] == "2"


def test_prometheus_itself_can_read_the_metrics(broker: Broker) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    from semel.broker.observability.metrics import render

    families = {family.name for family in parser.text_string_to_metric_families(render(broker.server))}
    assert "kafka_server_replicamanager_partitioncount" in families

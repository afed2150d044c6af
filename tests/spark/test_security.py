"""The pipeline behind locks: TLS and SASL on driver and tasks, and no secret left lying about."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

import semel
from semel.errors import AuthenticationFailed, TlsFailed
from semel.spark import PipelineMistake, RowRefused, Step, start
from semel.spark.range_reader import OffsetRange, _fetch
from semel.testing.fault_proxy import FaultProxy, Passing, Way
from semel.wire.apis import ApiKey
from tests.security.conftest import PASSWORD, USER, Locks, locked_kafka, locked_semel  # noqa: F401 - fixtures
from tests.spark.driver import Driver
from tests.spark.session import java_options
from tests.spark.stage import Stage
from tests.support.pages import blocks_of
from tests.support.processes import free_port
from tests.support.requirements import CHECKOUT, require_spark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ON_BOTH = [
    "locked_semel",
    pytest.param("locked_kafka", marks=pytest.mark.java),
]


def as_options(settings: dict[str, object]) -> dict[str, str]:
    return {f"kafka.{name}": str(value) for name, value in settings.items()}


def java_names(locks: Locks, password: str = PASSWORD) -> dict[str, object]:
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return {
        "bootstrap.servers": locks.address("SASL_SSL"),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(locks.authority_file),
        "ssl.truststore.type": "PEM",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} username="{USER}" password="{escaped}";',
    }


def librdkafka_names(locks: Locks, password: str = PASSWORD) -> dict[str, object]:
    return {
        "bootstrap.servers": locks.address("SASL_SSL"),
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(locks.authority_file),
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": password,
    }


def without_address(settings: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in settings.items() if name != "bootstrap.servers"}


def stage_behind(locks: Locks, spark: Any, folder: Path, name: str) -> Stage:
    """Input and proof go through the open listener, the pipeline through the locked one."""
    stage = Stage(spark, locks.plaintext, folder, f"pipeline-{name}")
    stage.create_topics(**{f"payments-{name}": 2, f"ledger-{name}": 2})
    return stage


@pytest.mark.parametrize("locks", ON_BOTH)
@pytest.mark.parametrize("column", [False, True], ids=["one topic", "topics by row"])
def test_source_and_sink_work_over_sasl_ssl_in_both_spellings(
    spark: Any, request: pytest.FixtureRequest, tmp_path: Path, locks: str, column: bool
) -> None:
    locked: Locks = request.getfixturevalue(locks)
    name = f"{int(column)}"
    stage = stage_behind(locked, spark, tmp_path, name)
    values = stage.put_numbers(40, f"payments-{name}")
    source, sink = librdkafka_names(locked), java_names(locked)
    if column:
        source, sink = sink, source
    rows = stage.source(subscribe=f"payments-{name}", maxOffsetsPerTrigger=20, **as_options(source))
    if column:
        rows = rows.selectExpr("key", "value", f"'ledger-{name}' as topic")
    given: dict[str, Any] = {"kafka": without_address(sink)}
    if column:
        given = {"options": as_options(without_address(sink)), "topic": None}
    steps = stage.run(rows, bootstrap_servers=sink["bootstrap.servers"], **{"topic": f"ledger-{name}", **given})
    assert [step for step, _ in steps].count(Step.COMMITTED) == 2
    stage.forget_commits_from(1)
    assert stage.run(rows, bootstrap_servers=sink["bootstrap.servers"], **{"topic": f"ledger-{name}", **given}) == [
        (Step.SKIPPED, 1)
    ]
    assert sorted(value for value in stage.values(f"ledger-{name}") if value) == values
    committed = semel.Admin({"bootstrap.servers": locked.plaintext})
    with committed as admin:  # the source is on this cluster, though it is reached through another listener
        assert sum(at.offset for at in admin.list_group_offsets(stage.transactional_id).values()) == 40


@pytest.mark.parametrize("locks", ON_BOTH)
def test_a_wrong_password_is_told_at_once_by_load_and_by_start(
    spark: Any, request: pytest.FixtureRequest, tmp_path: Path, locks: str
) -> None:
    locked: Locks = request.getfixturevalue(locks)
    stage = stage_behind(locked, spark, tmp_path, "wrong")
    wrong = librdkafka_names(locked, "not the password")
    began = time.monotonic()
    with pytest.raises(AnalysisException) as refused:
        stage.source(subscribe="payments-wrong", **as_options(wrong))
    assert "AuthenticationFailed" in str(refused.value)
    assert "refused the credentials" in str(refused.value)
    assert "Traceback" not in str(refused.value) and "not the password" not in str(refused.value)
    rows = stage.source(subscribe="payments-wrong")
    with pytest.raises(AuthenticationFailed) as failed:
        stage.start(rows, topic="ledger-wrong", bootstrap_servers=wrong["bootstrap.servers"],
                    kafka=without_address(wrong))  # fmt: skip
    assert "\n" not in str(failed.value) and "not the password" not in str(failed.value)
    assert time.monotonic() - began < 60  # most of it is Spark's, which starts a Python for each load()
    assert not Path(stage.checkpoint).exists()


def test_a_certificate_that_nobody_vouches_for_is_told_at_once(
    spark: Any, locked_semel: Locks, tmp_path: Path  # noqa: F811
) -> None:
    stage = stage_behind(locked_semel, spark, tmp_path, "tls")
    stranger = {"bootstrap.servers": locked_semel.address("SSL"), "security.protocol": "SSL"}
    with pytest.raises(AnalysisException, match="TlsFailed"):
        stage.source(subscribe="payments-tls", **as_options(stranger))
    with pytest.raises(AnalysisException, match=r"kafka.ssl.ca.location: cannot read nothing.pem"):
        stage.source(subscribe="payments-tls", **as_options({**stranger, "ssl.ca.location": "nothing.pem"}))
    with pytest.raises(TlsFailed):
        stage.start(stage.source(subscribe="payments-tls"), bootstrap_servers=stranger["bootstrap.servers"],
                    topic="ledger-tls", kafka=without_address(stranger))  # fmt: skip


def test_no_secret_is_written_down_or_shown_and_files_are_found_by_their_bare_names(
    locked_semel: Locks, tmp_path: Path  # noqa: F811
) -> None:
    """Two executors, each in a directory of its own: the certificates are only where spark.files brings them."""
    require_spark()
    stage = Stage(None, locked_semel.plaintext, tmp_path)
    stage.create_topics(payments=2, ledger=2)
    values = stage.put_numbers(30)
    brought = tmp_path / "far away" / "brought-ca.pem"
    events, checkpoint = tmp_path / "events", tmp_path / "checkpoint"
    brought.parent.mkdir()
    events.mkdir()
    shutil.copy(locked_semel.authority_file, brought)
    key = locked_semel.client.key_pem
    source = {
        **librdkafka_names(locked_semel), "ssl.ca.location": "brought-ca.pem", "ssl.key.pem": key,
        "ssl.certificate.pem": locked_semel.client.certificate_pem,
    }  # fmt: skip
    sink = {
        **without_address(java_names(locked_semel)), "ssl.truststore.location": "brought-ca.pem",
        "ssl.keystore.key": key, "ssl.keystore.certificate.chain": locked_semel.client.certificate_pem,
    }  # fmt: skip
    plan = {
        "events": str(events), "files": str(brought), "source": source, "sink": sink,
        "bootstrap": locked_semel.address("SASL_SSL"), "checkpoint": str(checkpoint),
        "java_options": java_options(),
    }  # fmt: skip
    path = os.pathsep.join(part for part in (str(CHECKOUT / "src"), os.environ.get("PYTHONPATH")) if part)
    ran = subprocess.run(
        [sys.executable, str(CHECKOUT / "tests" / "spark" / "secret_pipeline.py")],
        input=json.dumps(plan), text=True, capture_output=True, timeout=280, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    shown = {"standard output": ran.stdout, "log": ran.stderr}
    assert ran.returncode == 0 and "done" in ran.stdout, _python_errors(ran.stderr)
    assert sorted(value for value in stage.values() if value) == values
    for folder in (events, checkpoint):
        for file in folder.rglob("*"):
            if file.is_file():
                shown[str(file)] = file.read_text(errors="replace")
    assert any("SparkListenerSQLExecutionStart" in text for name, text in shown.items() if name.startswith(str(events)))
    assert (checkpoint / "offsets" / "0").exists()
    assert "DEBUG" in ran.stderr
    assert "kafka.ssl.key.pem=*********(redacted)" in ran.stdout
    secrets = [PASSWORD, PASSWORD.replace('"', '\\"'), json.dumps(PASSWORD)[1:-1], key.splitlines()[1]]
    for name, text in shown.items():
        for secret in secrets:
            assert secret not in text, f"{secret} is in {name}"


def _python_errors(text: str) -> str:
    """The log without Spark's own lines and Java's stack traces."""
    kept = [line for line in text.splitlines() if not line[:2].isdigit() and not line.startswith("\t")]
    return "\n".join(kept)[:4000]


def test_the_program_of_the_page_works_behind_locks(
    spark: Any, locked_semel: Locks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    stage = stage_behind(locked_semel, spark, tmp_path, "page")
    values = stage.put_numbers(5, "payments-page")
    program = next(block.text for block in blocks_of(CHECKOUT / "docs" / "spark.md") if "login = {" in block.text)
    for written, real in (
        ("localhost:9092", locked_semel.address("SASL_SSL")),
        ('"ledger",\n    "sasl.password"', f'"{USER}",\n    "sasl.password"'),
        ("authority.pem", str(locked_semel.authority_file)),
        ('"payments"', '"payments-page"'),
        ('topic="ledger"', 'topic="ledger-page"'),
        ("/data/checkpoints/ledger", stage.checkpoint),
    ):
        assert written in program
        program = program.replace(written, real, 2)
    monkeypatch.setenv("LEDGER_PASSWORD", PASSWORD)
    names: dict[str, Any] = {"spark": spark, "os": os, "start": start}
    exec(compile(program, "docs/spark.md", "exec"), names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    assert sorted(value for value in stage.values("ledger-page") if value) == values


def test_the_claim_port_is_used_and_two_pipelines_cannot_share_it(
    spark: Any, semel_broker: semel.Broker, tmp_path: Path
) -> None:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=1, ledger=1)
    values = stage.put_numbers(5)
    port = free_port()
    query = stage.start(stage.source(), claim_port=port, trigger={"processingTime": "0 seconds"})
    try:
        query.processAllAvailable()
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
        with pytest.raises(PipelineMistake, match=rf"claim_port={port} cannot be used.*one of its own"):
            stage.start(stage.source(), claim_port=port, transactional_id="another", checkpoint=str(tmp_path / "2"))
    finally:
        query.stop()
    spark.conf.set("spark.semel.claims.port", "many")
    try:
        with pytest.raises(PipelineMistake, match=r"spark.semel.claims.port=many: must be a port"):
            stage.start(stage.source())
    finally:
        spark.conf.unset("spark.semel.claims.port")
    assert stage.values() == values


def test_options_of_the_producer_have_their_effect(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> None:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=1, ledger=1)
    values = stage.put_numbers(2000)
    produced: list[int] = []

    def count(passing: Passing) -> None:
        if passing.api_key == ApiKey.PRODUCE and passing.way is Way.REQUEST:
            produced.append(1)

    with FaultProxy(stage.bootstrap_servers, count) as proxy:
        stage.run(stage.source(), bootstrap_servers=proxy.bootstrap_servers,
                  kafka={"batch.size": 4000, "compression.type": "zstd"})  # fmt: skip
    assert stage.values() == values
    assert len(produced) > 5
    driver = Driver(stage.bootstrap_servers)
    try:
        row = driver.loop.run(_fetch(driver.cluster, OffsetRange("ledger", 0, 0, 1), 0, 1))
        assert row.records[22] & 7 == 4  # the codec in the attributes of the first batch: zstd
    finally:
        driver.close()
    stage.put("payments", [(b"k", os.urandom(3000))])
    stage.query = None
    with pytest.raises(Exception, match=r"raise the option kafka\.max\.request\.size") as failed:
        stage.run(stage.source(), kafka={"max.request.size": 2000})
    assert isinstance(failed.value.__cause__, RowRefused)

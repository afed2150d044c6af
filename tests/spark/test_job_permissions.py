"""`semel pipeline check` on a protected cluster: what a user may not do is told, though internal topics are hidden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

import semel
from tests.spark.test_job_file import written
from tests.support.apache_kafka import ApacheKafka
from tests.support.requirements import require_kafka

pytest.importorskip("pyspark")

FILE = """\
transactional_id = "pipeline"
checkpoint = "checkpoint"
marker_topic = "pipelines"
[kafka]
{settings}
[source.payments]
subscribe = "payments"
[output.ledger]
"""
TOPICS = ("payments", "ledger", "pipelines")


def looked_at(folder: Path, settings: dict[str, str]) -> tuple[Any, Any]:
    """What `check` finds out from the brokers, and the progress. It needs no Spark."""
    from semel.client.blocking.loop_thread import LoopThread
    from semel.spark.job.checking import Findings, _look_at_the_brokers
    from semel.spark.job.file import read_pipeline

    text = FILE.format(settings="\n".join(f'{name} = "{value}"' for name, value in settings.items()))
    found, loop = Findings(), LoopThread("test-check")
    try:
        return found, loop.run(_look_at_the_brokers(read_pipeline(written(folder, text)), found))
    finally:
        loop.close()


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[semel.Broker]:
    """A broker on which bob may do nothing yet."""
    users = {"alice": "looking-glass", "bob": "nothing-at-all"}
    with semel.Broker(
        tmp_path / "data", security=semel.Security(users=users, acls=[], super_users=["alice"])
    ) as broker:
        admin = AdminClient(broker.client_settings("alice"))
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in TOPICS]).values():
            made.result(20)
        yield broker


def allow(broker: semel.Broker, kind: ResourceType, name: str, operation: AclOperation) -> None:
    rule = AclBinding(kind, name, ResourcePatternType.LITERAL, "User:bob", "*", operation, AclPermissionType.ALLOW)
    admin = AdminClient(broker.client_settings("alice"))  # kept by its name: one that is collected gives no answer
    for made in admin.create_acls([rule]).values():
        made.result(20)


def test_each_missing_right_is_told_until_nothing_is_missing(locked: semel.Broker, tmp_path: Path) -> None:
    def missing() -> dict[str, str]:
        found, _ = looked_at(tmp_path, locked.client_settings("bob"))
        assert not any("nothing-at-all" in mistake.why for mistake in found.mistakes)
        return {mistake.key: mistake.why for mistake in found.mistakes}

    assert set(missing()) == {"source.payments.subscribe", "output.ledger.topic", "marker_topic", "transactional_id"}
    allow(locked, ResourceType.TOPIC, "payments", AclOperation.READ)
    for topic in ("ledger", "pipelines"):
        allow(locked, ResourceType.TOPIC, topic, AclOperation.WRITE)
    assert missing() == {"transactional_id": "this user may not write transactional id 'pipeline'"}
    allow(locked, ResourceType.TRANSACTIONAL_ID, "pipeline", AclOperation.WRITE)
    assert missing() == {"transactional_id": "this user may not read group 'pipeline'"}
    allow(locked, ResourceType.GROUP, "pipeline", AclOperation.READ)
    assert missing() == {}


def test_who_sees_that_there_are_no_internal_topics_does_not_make_them(locked: semel.Broker, tmp_path: Path) -> None:
    found, progress = looked_at(tmp_path, locked.client_settings("alice"))
    assert found.mistakes == [] and progress.marker is None
    assert dict(found.facts)["permissions"].startswith("no transaction was ever run here")
    admin = AdminClient(locked.client_settings("alice"))
    assert set(admin.list_topics(timeout=20).topics) == set(TOPICS)


def test_progress_is_found_without_asking_for_a_coordinator(locked: semel.Broker, tmp_path: Path) -> None:
    progress_is_found(locked.client_settings("alice"), tmp_path)


@pytest.mark.java
def test_progress_is_found_on_apache_kafka_too(tmp_path: Path) -> None:
    require_kafka()
    # One of its own: on the shared one others have topics and pipelines of these names.
    with ApacheKafka() as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in TOPICS]).values():
            made.result(30)
        progress_is_found({"bootstrap.servers": kafka.bootstrap_servers}, tmp_path)


def progress_is_found(settings: dict[str, str], folder: Path) -> None:
    from semel.machines.pipeline.batch_marker import BatchMarker
    from semel.machines.transactions.producer import OffsetAndMetadata

    found, progress = looked_at(folder, settings)
    assert (found.mistakes, progress.marker) == ([], None)
    marker = BatchMarker("query", 3, "aa")
    with semel.Producer({**settings, "transactional.id": "pipeline"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("ledger", "entry")
            at = OffsetAndMetadata(7, metadata=marker.to_metadata())
            producer.send_offsets_to_transaction({("payments", 0): at}, "pipeline")
    found, progress = looked_at(folder, settings)
    assert (found.mistakes, progress.marker) == ([], marker)
    assert ("permissions", "this user may write transactional id 'pipeline' and read group 'pipeline'") in found.facts

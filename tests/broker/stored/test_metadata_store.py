"""The metadata store and the producer ids that are claimed through it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import ClassVar

import pytest

from semel.broker.stored.metadata_store import Conflict, LocalMetadataStore
from semel.broker.stored.producer_ids import ProducerIds
from semel.broker.stored.topics import StoredTopics
from semel.errors import ErrorCode, Refused
from semel.log.files import Files


def test_an_update_needs_the_version_it_read(tmp_path: Path) -> None:
    store = LocalMetadataStore(tmp_path, Files())
    assert store.get("entry") == (None, -1)
    assert store.update("entry", {"a": 1}, -1) == 0
    assert store.update("entry", {"a": 2}, 0) == 1
    with pytest.raises(Conflict):
        store.update("entry", {"a": 3}, 0)
    with pytest.raises(Conflict):
        store.update("entry", {"a": 3}, -1)
    assert LocalMetadataStore(tmp_path, Files()).get("entry") == ({"a": 2}, 1)


def test_producer_ids_come_in_claimed_blocks_of_a_thousand(tmp_path: Path) -> None:
    store = LocalMetadataStore(tmp_path, Files())
    ids = ProducerIds(store, broker=35)
    assert [ids.take() for _ in range(1001)] == list(range(1001))
    block, _ = store.get("latest_producer_id_block")
    assert block == {"version": 1, "broker": 35, "block_start": "1000", "block_end": "1999"}
    text = (tmp_path / "latest_producer_id_block").read_text().splitlines()[1]
    assert json.loads(text) == block


def test_a_restart_never_hands_out_an_id_again(tmp_path: Path) -> None:
    seen: set[int] = set()
    for _ in range(3):
        ids = ProducerIds(LocalMetadataStore(tmp_path, Files()), broker=1)
        taken = {ids.take() for _ in range(1500)}
        assert not taken & seen
        seen |= taken


def test_two_brokers_on_one_store_share_no_id(tmp_path: Path) -> None:
    one = ProducerIds(LocalMetadataStore(tmp_path, Files()), broker=1)
    two = ProducerIds(LocalMetadataStore(tmp_path, Files()), broker=2)
    assert not {one.take() for _ in range(2500)} & {two.take() for _ in range(2500)}


def test_a_claim_that_loses_the_race_takes_the_next_block(tmp_path: Path) -> None:
    class Raced(LocalMetadataStore):
        raced = False

        def update(self, name: str, value: object, expected_version: int) -> int:
            if not self.raced:
                self.raced = True
                rival = ProducerIds(LocalMetadataStore(tmp_path, Files()), broker=2)
                assert rival.take() == 0
            return super().update(name, value, expected_version)

    assert ProducerIds(Raced(tmp_path, Files()), broker=1).take() == 1000


def test_running_out_of_ids_is_said_plainly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = LocalMetadataStore(tmp_path, Files())
    last = 2**63 - 1
    store.update(
        "latest_producer_id_block",
        {"version": 1, "broker": 1, "block_start": str(last - 1500), "block_end": str(last - 501)},
        -1,
    )
    with pytest.raises(Refused, match="exhausted") as refused:
        ProducerIds(store, broker=1).take()
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    told = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert "Start a new data directory" in told[0].getMessage()


def test_a_new_store_is_durable_with_its_name(tmp_path: Path) -> None:
    """Otherwise a power cut takes the whole directory, and producer ids are handed out again."""

    class Synced(Files):
        directories: ClassVar[list[str]] = []

        def sync_directory(self, path: str | os.PathLike[str]) -> None:
            self.directories.append(os.fspath(path))
            super().sync_directory(path)

    store = LocalMetadataStore(tmp_path / ".metadata", Synced())
    assert not (tmp_path / ".metadata").exists(), "Apache Kafka starts on no directory that has one"
    store.update("entry", {}, -1)
    assert Synced.directories[0] == str(tmp_path)
    LocalMetadataStore(tmp_path / ".metadata", Synced()).update("entry", {}, 0)
    assert Synced.directories.count(str(tmp_path)) == 1


def test_a_change_made_while_another_is_being_written_keeps_both(tmp_path: Path) -> None:
    """The broker creates its own topics at once, also while a client's are on their way to the disk."""
    store = LocalMetadataStore(tmp_path, Files())
    topics = StoredTopics(store)
    topics.read()
    goes_on = threading.Event()

    async def play() -> None:
        beside = asyncio.create_task(topics.save_beside({"client": {"partitions": 1}}, lambda: goes_on.wait(20)))
        await asyncio.sleep(0)
        goes_on.set()
        topics.save({"internal": {"partitions": 50}})
        await beside

    asyncio.run(play())
    assert topics.rows == {"client": {"partitions": 1}, "internal": {"partitions": 50}}
    assert store.get("topics") == ({"version": 1, "topics": topics.rows}, 1)
    store.close()


def test_a_change_that_the_disk_refuses_is_in_none_that_follow(tmp_path: Path) -> None:
    store = LocalMetadataStore(tmp_path, Files())
    topics = StoredTopics(store)
    topics.read()

    def fail() -> None:
        raise OSError(28, "no space left on device")

    async def play() -> None:
        with pytest.raises(Refused, match="no space left") as refused:
            await topics.save_beside({"refused": {"partitions": 1}}, fail)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        await topics.save_beside({"kept": {"partitions": 1}})
        await topics.save_beside({"kept": None, "next": {"partitions": 2}})

    asyncio.run(play())
    assert topics.rows == {"next": {"partitions": 2}}
    assert store.get("topics")[0]["topics"] == topics.rows
    store.close()

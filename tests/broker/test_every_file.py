"""Every file of a data directory after a clean stop: cut, flipped and removed, one by one.

Whatever is done to it, a start either serves the same data, or says in words which file it is and what to do. The data
directory has everything that can lie in one: old segments, aborted transactions, compaction, deleted records, groups,
transactional ids, settings, quotas, credentials.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode, Refused
from semel.records.batch import read_records
from semel.wire.messages.configs import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.metadata import DescribeClusterRequest
from semel.wire.messages.offsets import OffsetFetchRequest
from semel.wire.messages.security import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest
from semel.wire.messages.transactions import DescribeProducersRequest, InitProducerIdRequest, ListTransactionsRequest
from tests.broker.raw import Raw, batch, stored_batches
from tests.broker.test_topics import delete_records
from tests.broker.test_transactions import Transactional
from tests.support.waiting import until

#: Fewer partitions of the internal topics: 50 would only repeat the same files.
SETTINGS = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1, "log.cleaner.enable": False}
TOPIC, BROKER, GROUP = 2, 4, 32


def alter(raw: Raw, resource_type: int, resource: str, name: str, value: str) -> None:
    row = IncrementalAlterConfigsRequest.AlterableConfig(name=name, value=value, config_operation=0)
    asked = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type, resource_name=resource, configs=[row]
    )
    assert raw.ask(IncrementalAlterConfigsRequest(resources=[asked])).responses[0].error_code == 0


def fill(path: Path) -> None:
    with Broker(path, settings=SETTINGS) as broker, Raw(broker) as raw:
        raw.create("t", segment_bytes="600", index_interval_bytes="100")
        raw.create("c", cleanup_policy="compact", segment_bytes="600", delete_retention_ms="0")
        raw.create("d")
        raw.create("never-written")
        for number in range(12):
            raw.produce("t", batch(b"%d" % number * 60, timestamp_ms=1_700_000_000_000 + number))
            raw.produce("c", batch(b"%d" % number * 60, key=b"k%d" % (number % 3)))
            raw.produce("d", batch(b"%d" % number))
        for name, commit in (("a", True), ("b", False), ("c", False), ("d", True)):
            producer = Transactional(raw, name)
            assert producer.write("t", b"of " + name.encode()) is ErrorCode.NONE
            assert producer.commit_offset("readers", "t", ord(name)) is ErrorCode.NONE
            assert producer.end(commit=commit) is ErrorCode.NONE
        raw.produce("t", batch(b"last"))
        assert delete_records(raw, "d", 5).error_code == 0
        alter(raw, TOPIC, "d", "retention.ms", "-1")
        alter(raw, BROKER, "1", "log.cleaner.backoff.ms", "12345")
        alter(raw, GROUP, "readers", "consumer.session.timeout.ms", "50000")
        entity = AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name="x")
        change = AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1e9, remove=False)
        entry = AlterClientQuotasRequest.EntryData(entity=[entity], ops=[change])
        assert raw.ask(AlterClientQuotasRequest(entries=[entry])).entries[0].error_code == 0
        user = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name="user", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"salted"
        )
        made = raw.ask(AlterUserScramCredentialsRequest(upsertions=[user])).results[0]
        assert made.error_code == 0
        log = broker.server.topics.partition("c", 0).log
        broker.call(_compact(broker, log))
        until(lambda: _stable(broker), what="the markers")


async def _compact(broker: Broker, log: Any) -> None:
    assert log.cleaner.compact(broker.server.now_ms(), force=True) is not None


def _stable(broker: Broker) -> bool:
    log = broker.server.topics.partition("t", 0).log
    return bool(log.last_stable_offset == log.end_offset)


def answers(broker: Broker) -> dict[str, Any]:
    """What clients are told, one answer for each kind of thing a data directory holds."""
    told: dict[str, Any] = {}
    with Raw(broker) as raw:
        for topic in ("t", "c", "d", "never-written"):
            told[f"offsets of {topic}"] = [_offset(raw, topic, which) for which in (-2, -1)]
            told[f"records of {topic}"] = list(_records(raw, topic, told[f"offsets of {topic}"]))
        told["by time"] = [_offset(raw, "t", 1_700_000_000_000 + number) for number in range(12)]
        told["cluster"] = raw.ask(DescribeClusterRequest()).cluster_id
        told["committed"] = _committed(raw)
        listed = raw.ask(ListTransactionsRequest()).transaction_states
        told["transactions"] = sorted((row.transactional_id, row.transaction_state) for row in listed)
        told["settings"] = [
            _setting(raw, TOPIC, "d", "retention.ms"),
            _setting(raw, TOPIC, "c", "cleanup.policy"),
            _setting(raw, BROKER, "1", "log.cleaner.backoff.ms"),
            _setting(raw, GROUP, "readers", "consumer.session.timeout.ms"),
        ]
        quotas = raw.ask(DescribeClientQuotasRequest(components=[], strict=False))
        told["quotas"] = [[(value.key, value.value) for value in row.values] for row in quotas.entries or ()]
        users = raw.ask(DescribeUserScramCredentialsRequest(users=None))
        told["users"] = [
            (row.user, [(one.mechanism, one.iterations) for one in row.credential_infos]) for row in users.results
        ]
        described = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
        producers = raw.ask(DescribeProducersRequest(topics=[described])).topics[0].partitions[0]
        told["producers"] = (
            producers.error_code,
            sorted((row.producer_id, row.producer_epoch, row.last_sequence) for row in producers.active_producers),
        )
        told["a new producer id"] = raw.ask(InitProducerIdRequest(transactional_id=None)).producer_id >= 1000
    return told


def _offset(raw: Raw, topic: str, timestamp: int) -> tuple[int, int]:
    row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])
    answer = raw.ask(ListOffsetsRequest(replica_id=-1, topics=[asked])).topics[0].partitions[0]
    return answer.error_code, answer.offset


def _records(raw: Raw, topic: str, offsets: list[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
    """As a read_committed consumer that goes from offset to offset gets them."""
    (_, offset), (_, end) = offsets
    while 0 <= offset < end:
        part = raw.fetch(topic, offset, isolation_level=1, max_wait_ms=0, partition_max_bytes=300)
        if part.error_code:
            yield ("error", part.error_code)
            return
        yield ("aborted", sorted((row.producer_id, row.first_offset) for row in part.aborted_transactions or ()))
        batches = stored_batches(part)
        if not batches:
            return
        for one in batches:
            for record in read_records(one):
                if record.offset >= offset:
                    yield (record.offset, bytes(record.value or b""), record.timestamp)
            offset = one.next_offset


def _committed(raw: Raw) -> Any:
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="readers", topics=None)
    found = raw.ask(OffsetFetchRequest(groups=[group]), 9).groups[0]
    return found.error_code, [(row.name, [one.committed_offset for one in row.partitions]) for row in found.topics]


def _setting(raw: Raw, resource_type: int, resource: str, name: str) -> Any:
    row = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=resource_type, resource_name=resource, configuration_keys=[name]
    )
    found = raw.ask(DescribeConfigsRequest(resources=[row])).results[0].configs[0]
    return found.value, found.config_source


def cut_in_half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def cut_last(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def removed(path: Path) -> None:
    path.unlink()


def flipped_at(place: float, mask: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[min(int(len(data) * place), len(data) - 1)] ^= mask
        path.write_bytes(data)

    return flip


HARM: dict[str, Callable[[Path], None]] = {
    "removed": removed,
    "emptied": emptied,
    "cut in half": cut_in_half,
    "cut by a byte": cut_last,
    **{
        f"flipped at {place:.0%} by {mask:#x}": flipped_at(place, mask)
        for place, mask in ((0.0, 0x80), (0.0, 0x01), (0.2, 0x01), (0.4, 0x80), (0.6, 0x01), (0.8, 0x80), (1.0, 0x01))
    },
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory as two clean stops leave it: the first start has opened what the second finds closed."""
    path = tmp_path_factory.mktemp("whole") / "data"
    fill(path)
    with Broker(path, settings=SETTINGS) as broker:
        answers(broker)
    return path


@pytest.fixture(scope="module")
def expected(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("expected") / "data"
    shutil.copytree(whole, path)
    with Broker(path, settings=SETTINGS) as broker:
        told = answers(broker)
    assert len(told["records of t"]) > 12
    assert sum(bool(row[1]) for row in told["records of t"] if row[0] == "aborted") > 0
    assert told["a new producer id"] and told["users"] and told["quotas"]
    return told


def files_of(whole: Path) -> list[str]:
    return sorted(str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file())


def told_in_words(said: str, name: str) -> bool:
    """Whether a message names the file (or its directory, or the segment it belongs to) and says what happens or is to
    be done."""
    path = Path(name)
    names = (path.name, path.stem) if path.parent.name not in ("", ".metadata") else (path.name,)
    named = any(re.search(rf"{re.escape(one)}\b", said) for one in names)
    return named and any(word in said for word in ("Restore", "rebuilt", "written anew", "is not used", "done without",
                                                   "found out"))  # fmt: skip


def look(data: Path, caplog: pytest.LogCaptureFixture) -> tuple[dict[str, Any] | None, str]:
    """(what is answered, or None where the broker does not start; everything that was said)."""
    caplog.clear()
    try:
        with caplog.at_level(logging.WARNING, "semel"), Broker(data, settings=SETTINGS) as broker:
            found = answers(broker)
    except Refused as refused:
        return None, str(refused)
    return found, "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("kind", HARM)
def test_a_start_serves_the_same_data_or_says_which_file_and_what_to_do(
    whole: Path, expected: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    silent = []
    tracebacks = []
    for number, name in enumerate(files_of(whole)):
        data = tmp_path / str(number)
        shutil.copytree(whole, data)
        if not (data / name).stat().st_size and kind != "removed":
            continue
        HARM[kind](data / name)
        for start in ("first", "second"):
            found, said = look(data, caplog)
            tracebacks += [(name, start, record) for record in caplog.records if record.exc_info]
            if found == expected:
                break
            if not told_in_words(said, name):
                differs = [key for key in expected if found is not None and found[key] != expected[key]]
                silent.append((name, start, differs, said))
        shutil.rmtree(data)
    assert not silent, "\n".join(map(str, silent))
    assert not tracebacks, tracebacks


def test_a_list_of_aborts_that_went_bad_before_a_start_is_rebuilt_after_a_crash_too(
    whole: Path, expected: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody used the partition in between, and the stop before knows what the list was."""
    data, crashed = tmp_path / "data", tmp_path / "crashed"
    shutil.copytree(whole, data)
    lists = [path for path in (data / "t-0").glob("*.txnindex") if path.stat().st_size]
    assert lists
    for path in lists:
        content = bytearray(path.read_bytes())
        content[9] ^= 1  # the last byte of a producer id
        path.write_bytes(content)
    with Broker(data, settings=SETTINGS):
        shutil.copytree(data, crashed)
    found, said = look(crashed, caplog)
    assert found == expected
    assert any(path.stem in said for path in lists) and "rebuilt" in said


@pytest.mark.parametrize("start", ["after a clean stop", "after a crash"])
def test_a_partition_that_is_gone_altogether_is_told(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, start: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    shutil.rmtree(data / "t-0")
    if start == "after a crash":
        (data / ".kafka_cleanshutdown").unlink()
    for _ in range(2):
        found, said = look(data, caplog)
        assert found is not None and found["offsets of t"] == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 2
        assert "t-0 is missing" in said and "Restore the directory" in said
    shutil.copytree(whole / "t-0", data / "t-0")
    assert look(data, caplog)[0] is not None


@pytest.mark.parametrize("entries", [["topics"], ["latest_producer_id_block"], None], ids=str)
@pytest.mark.parametrize("start", ["after a clean stop", "after a crash"])
def test_a_store_that_the_directories_contradict_is_not_started_over(
    whole: Path, tmp_path: Path, entries: list[str] | None, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    if start == "after a crash":
        for name in (".kafka_cleanshutdown", ".semel_manifest"):
            (data / name).unlink()
    if entries is None:
        shutil.rmtree(data / ".metadata")
    for name in entries or ():
        (data / ".metadata" / name).unlink()
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for _ in range(2):
        found, said = look(data, caplog)
        assert found is None
        assert (entries or ["topics"])[0] in said and "Restore it" in said
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["latest_producer_id_block", "broker-settings"])
def test_the_remedy_works(whole: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    path = data / ".metadata" / name
    path.write_bytes(b"garbage")
    found, said = look(data, caplog)
    assert found is None
    if name == "broker-settings":
        path.unlink()
        (data / ".semel_manifest").unlink()
    else:
        block = re.search(r"\{.*\}", said)
        assert block is not None
        path.write_text(f"0\n{block[0]}\n")
    found, _ = look(data, caplog)
    assert found is not None and found["a new producer id"]


@pytest.mark.parametrize("harm", ["cut in half", "flipped at 60% by 0x1", "removed"])
@pytest.mark.parametrize("starts", [1, 2])
def test_what_is_behind_damage_can_be_given_up(
    whole: Path, tmp_path: Path, harm: str, starts: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    directory = data / "t-0"
    segments = sorted(directory.glob("*.log"))
    harmed = segments[len(segments) // 2]
    HARM[harm](harmed)
    for _ in range(starts):
        _, said = look(data, caplog)
    place = re.search(rf"{harmed} is damaged at byte ([0-9]+)", said)
    if place is not None:
        with harmed.open("r+b") as file:
            file.truncate(int(place[1]))
    else:
        assert f"{harmed} is missing" in said
    for segment in segments[segments.index(harmed) + 1 :]:
        segment.unlink()
    for path in (directory / ".semel_expected", data / "recovery-point-offset-checkpoint", data / ".semel_manifest"):
        path.unlink(missing_ok=True)
    for _ in range(2):
        with Broker(data, settings=SETTINGS) as broker, Raw(broker) as raw:
            end = raw.produce("t", batch(b"goes on"))
            assert end.error_code == ErrorCode.NONE
            records = list(_records(raw, "t", [_offset(raw, "t", -2), _offset(raw, "t", -1)]))
            assert records[-1][:2] == (end.base_offset, b"goes on")
            assert not [row for row in records if row[0] == "error"]


def test_an_identity_that_is_lost_is_given_again_by_whoever_knows_it(
    whole: Path, expected: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    (data / "meta.properties").unlink()
    found, said = look(data, caplog)
    assert found is None and "semel.cluster.id" in said
    with Broker(data, settings={**SETTINGS, "semel.cluster.id": expected["cluster"]}):
        pass
    assert look(data, caplog)[0] == expected


def test_what_apache_kafka_wrote_since_our_last_stop_is_no_damage(tmp_path: Path) -> None:
    manifest, mark = tmp_path / ".semel_manifest", tmp_path / ".kafka_cleanshutdown"
    with Broker(tmp_path, settings=SETTINGS) as broker, Raw(broker) as raw:
        raw.create("t")
        raw.produce("t", batch(b"ours"))
    left_by_us = manifest.read_bytes()
    with Broker(tmp_path, settings=SETTINGS) as broker, Raw(broker) as raw:
        raw.produce("t", batch(b"theirs"))
    # Kafka leaves our manifest as it is, and a mark with its own epoch.
    manifest.write_bytes(left_by_us)
    mark.write_bytes(b'{"version":0,"brokerEpoch":12}')
    with Broker(tmp_path, settings=SETTINGS) as broker, Raw(broker) as raw:
        stored = stored_batches(raw.fetch("t"))
        assert [record.value for one in stored for record in read_records(one)] == [b"ours", b"theirs"]

"""The small files of a data directory: any bytes are what was written, or are called damaged.

Where a file has a checksum, it is made right first: a file of another version has one too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from crc32c import crc32c

from semel.broker.stored.access_rules import AccessRuleStore
from semel.broker.stored.delegation_tokens import DelegationTokenStore
from semel.broker.stored.dynamic_settings import DynamicSettings
from semel.broker.stored.group_settings import GroupSettingsStore
from semel.broker.stored.metadata_store import DamagedStore, LocalMetadataStore
from semel.broker.stored.quotas import QuotaStore
from semel.broker.stored.scram import ScramStore
from semel.config import BROKER, ConfigError
from semel.log import checkpoints, manifest
from semel.log.checkpoints import DamagedCheckpoint, LeaderEpochs
from semel.log.indexes import (
    DamagedIndex,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
    decode_offset_entries,
    decode_time_entries,
    decode_transaction_entries,
    encode_transaction_entry,
)
from semel.machines.security.access import AccessRules
from semel.machines.security.delegation_tokens import DelegationTokens
from tests.fuzz.target import Draw, Target, expect

_STARTED_WITH = BROKER.parse({})


class OneFile:
    """A disk with the same bytes behind every name."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, path: object) -> bytes:
        return self.data

    def exists(self, path: object) -> bool:
        return True

    def size(self, path: object) -> int:
        return len(self.data)

    def replace(self, path: object, data: bytes, *, durable: bool = True) -> None:
        """Whatever is stored is what is read again."""

    def read_beginning(self, path: object) -> bytes:
        return self.read(path)

    def write_into(self, path: object, data: bytes, position: int) -> None:
        """A damaged index is made one that the next start rebuilds."""


def _files(data: bytes) -> Any:
    return OneFile(data)


def offset_index(data: bytes) -> None:
    offsets, positions = decode_offset_entries(data)
    index = OffsetIndex("an index", 1000, loaded=False)
    index.load(_files(data))
    expect(index._encode_from(0) == data, "an index is written as another")
    for offset in (0, 1000, 1000 + (offsets[-1] if offsets else 0), 2**62):
        position, last = index.entry_before(offset)
        expect((position, last) == (0, -1) or (position in positions and last <= max(offset, 1000)), "a wrong place")
    index.batch_start_at_or_before(2**31)


def time_index(data: bytes) -> None:
    timestamps, _ = decode_time_entries(data)
    index = TimeIndex("an index", 1000, loaded=False)
    index.load(_files(data))
    expect(index._encode_from(0) == data, "an index is written as another")
    for timestamp in (-(2**63), 0, timestamps[-1] if timestamps else 5, 2**63 - 1):
        index.entry_before(timestamp)
    expect(index.last[1] >= 1000, "an offset before the segment")


def transaction_index(data: bytes) -> None:
    entries = decode_transaction_entries(data)
    expect(b"".join(map(encode_transaction_entry, entries)) == data, "an index is written as another")
    index = TransactionIndex("an index", loaded=False)
    index.load(_files(data))
    for begin, end in ((0, 2**62), (50, 60)):
        found: list[Any] = []
        index.collect(begin, end, found)
        expect(all(entry.last_offset >= begin and entry.first_offset < end for entry in found), "another's transaction")


def leader_epochs(data: bytes) -> None:
    entries = checkpoints.decode_leader_epochs(data)
    again = checkpoints.decode_leader_epochs(checkpoints.encode_leader_epochs(entries))
    expect(again == entries, "leader epochs are others when they are read again")
    epochs = LeaderEpochs(entries)
    for offset in (0, 100, 2**62):
        epochs.epoch_at(offset)
        epochs.end_offset_for(offset, 2**62)
    epochs.truncate_from_start(7)
    epochs.truncate_from_end(70)
    checkpoints.decode_leader_epochs(checkpoints.encode_leader_epochs(epochs.entries))


def offsets(data: bytes) -> None:
    found = checkpoints.decode_offsets(data)
    expect(checkpoints.decode_offsets(checkpoints.encode_offsets(found)) == found, "offsets are others when read again")


def partition_metadata(data: bytes) -> None:
    topic_id = checkpoints.decode_partition_metadata(data)
    again = checkpoints.decode_partition_metadata(checkpoints.encode_partition_metadata(topic_id))
    expect(again == topic_id, "a topic id is another")


def _with_checksum(data: bytes) -> bytes:
    text = data if data.endswith(b"\n") else data + b"\n"
    return text + f"crc32c={crc32c(text):08x}\n".encode()


def whole_manifest(data: bytes) -> None:
    for content in (data, _with_checksum(data)):
        found = manifest.read_manifest(_files(content), "data")
        if found is not None:
            for name in found.partitions:
                manifest.check_segments(name, {}, {}) if found.of_partition(name) is None else None
            expect(all(isinstance(text, str) for text in found.checkpoints.values()), "a checkpoint that is no text")


def expected_files(data: bytes) -> None:
    for content in (data, _with_checksum(data)):
        marks = manifest.read_expected(_files(content), "a partition")
        if marks is not None:
            again = manifest.decode_marks(manifest.encode_marks(marks))
            expect(again == marks, "the files of a partition are others when they are read again")


def _store(data: bytes) -> LocalMetadataStore:
    return LocalMetadataStore(Path("data/.metadata"), _files(data))


def metadata(data: bytes) -> None:
    """Every store that reads its entry at a start."""
    content = _with_checksum(data)
    for entry in (data, content):
        try:
            value, version = _store(entry).get("an entry")
        except DamagedStore:
            continue
        expect(isinstance(value, (dict, list)) and isinstance(version, int), "an entry that holds nothing")
    for make in (
        lambda store: AccessRuleStore(store, AccessRules()),
        lambda store: DelegationTokenStore(store, DelegationTokens(b"key", cast(Any, None))),
        lambda store: ScramStore(store).secret,
        QuotaStore,
        GroupSettingsStore,
        lambda store: DynamicSettings(store, 1, _STARTED_WITH).values,
    ):
        try:
            make(_store(content))
        except DamagedStore:
            continue
        except ConfigError as error:
            # A value that no setting has: the start says which.
            str(error).encode()


KINDS = (
    offset_index, time_index, transaction_index, leader_epochs, offsets, partition_metadata, whole_manifest,
    expected_files, metadata,
)


def one(data: bytes) -> None:
    draw = Draw(data)
    kind = draw.pick(KINDS)
    try:
        kind(draw.rest())
    except (DamagedIndex, DamagedCheckpoint):
        return


def seeds() -> list[bytes]:
    keys = b'"salt":"c2FsdA==","stored_key":"a2V5","server_key":"a2V5"'
    contents: dict[Any, list[bytes]] = {
        offset_index: [b"", b"\0\0\0\x05\0\0\1\0\0\0\0\x09\0\0\2\0"],
        time_index: [b"\0\0\1\x8b\0\0\0\0\0\0\0\x05\0\0\1\x8b\0\0\0\x01\0\0\0\x09"],
        transaction_index: [
            b"\0\0" + b"".join(n.to_bytes(8, "big") for n in (5, 40, 55, 60)),
            b"".join(b"\0\0" + b"".join(n.to_bytes(8, "big") for n in row) for row in ((5, 1, 9, 10), (6, 40, 55, 60))),
        ],
        leader_epochs: [b"0\n2\n0 0\n3 50\n", b"0\n0\n", b"0\n1\n5 9223372036854775807\n"],
        offsets: [b"", b"0\n2\nt 0 17\nother.topic 3 9\n"],
        partition_metadata: [b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", b"version: 0\ntopic_id: x_-x\n"],
        whole_manifest: [
            b'{"version":1,"checkpoints":{"log-start-offset-checkpoint":"0\\n0\\n"},"entries":["topics"]}\n'
            b"t-0 00000000000000000000.log:17:0badcafe x:0:\nt-1 \n",
            b'{"version":2}\n',
        ],
        expected_files: [b"00000000000000000000.log:17:0badcafe partition.metadata:43:\n", b"\n"],
        metadata: [
            b'3\n[["TOPIC","LITERAL","a","User:alice","*","READ","ALLOW"]]',
            b'0\n[{"user":"alice","mechanism":1,"iterations":4096,' + keys + b"}]",
            b'7\n[{"entity":[["user","alice"],["client-id",null]],"quotas":{"producer_byte_rate":1024.0}}]',
            b'0\n{"":{"log.retention.ms":"5"},"1":{"max.connections":"9"}}',
            b'0\n{"a":{"consumer.session.timeout.ms":"45000"}}',
            b'0\n[{"id":"x","owner":["User","a"],"requester":["User","b"],"renewers":[["User","c"]],'
            b'"issued_ms":1,"expires_ms":2,"max_ms":3}]',
            b"0\n[]",
            b"1\n{}",
        ],
    }
    return [bytes([KINDS.index(kind)]) + content for kind, found in contents.items() for content in found]


TARGET = Target(
    "any bytes are an index, a checkpoint, a manifest or an entry of the metadata store, or are called damaged",
    one,
    seeds,
    max_bytes=400,
)

"""A partition whose files are damaged is offline, alone, and nobody forgets about it."""

from __future__ import annotations

from pathlib import Path

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from tests.broker.raw import Raw, batch

LOG = "00000000000000000000.log"


def test_a_damaged_partition_is_offline_and_the_others_are_served(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        for partition in (0, 1):
            for _ in range(3):
                raw.produce("t", batch(), partition=partition)
    mark = tmp_path / ".kafka_cleanshutdown"
    mark.unlink()
    path = tmp_path / "t-0" / LOG
    whole = path.read_bytes()
    harmed = whole[:70] + b"\xff" + whole[71:]
    path.write_bytes(harmed)
    for _ in range(2):
        # The second time round too: a stop over a damaged partition claims no clean end.
        with Broker(tmp_path) as broker, Raw(broker) as raw:
            assert raw.produce("t", batch(), partition=0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert raw.fetch("t", partition=0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert raw.produce("t", batch(), partition=1).error_code == 0
        assert path.read_bytes() == harmed
        assert not mark.exists()
    path.write_bytes(whole)
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert raw.produce("t", batch(), partition=0).base_offset == 3
    assert mark.exists()

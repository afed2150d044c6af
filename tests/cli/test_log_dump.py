"""`semel log dump` of a whole data directory: every partition is verified, and what lies beside them is known."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from semel.broker.embedded import Broker
from semel.cli.log import log
from tests.broker.raw import Raw, batch


def test_a_data_directory_is_dumped_whole_while_the_broker_runs_and_after(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        raw.produce("t", batch(), partition=1)
        running = CliRunner().invoke(log, ["dump", str(tmp_path)])
    stopped = CliRunner().invoke(log, ["dump", str(tmp_path)])
    for result in (running, stopped):
        assert result.exit_code == 0, result.output
        assert "t-1/00000000000000000000.log: " in result.output
        assert "WRONG" not in result.output


def test_damage_in_one_partition_is_found_from_the_data_directory(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=1)
        raw.produce("t", batch(), partition=0)
    path = tmp_path / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = CliRunner().invoke(log, ["dump", str(tmp_path)])
    assert result.exit_code == 1
    assert "WRONG" in result.output


def test_no_file_of_a_sound_directory_is_called_wrong_by_its_name(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=1)
    files = [str(path) for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert {".lock", "meta.properties", "topics"} <= {Path(path).name for path in files}
    result = CliRunner().invoke(log, ["dump", *files])
    assert result.exit_code == 0 and "WRONG" not in result.output, result.output
    (tmp_path / "notes").write_text("mine")
    assert CliRunner().invoke(log, ["dump", str(tmp_path / "notes")]).exit_code == 1

"""What commands print: names that others have chosen cannot act on the terminal of whoever reads them."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import semel
from semel.broker.embedded import Broker
from semel.cli.output import printable, show
from tests.broker.raw import Raw
from tests.support.processes import free_port
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("payments", "payments"),
        ("Ünï-🙂", "Ünï-🙂"),
        ("a\nb", "a\\nb"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\u202eevil", "\\u202eevil"),
    ],
)
def test_characters_that_cannot_be_seen_are_shown_as_escapes(
    name: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printable(name) == shown
    show([{"group": name, "topics": [name], "offsets": {name: 1}}], ("group", "topics", "offsets"), as_json=False)
    _, row = capsys.readouterr().out.splitlines()
    assert row.split() == [shown, shown, f"{shown}=1"]


def semel_command(words: str, redirected: str) -> subprocess.CompletedProcess[str]:
    command = f"exec {shlex.quote(sys.executable)} -m semel {words} {redirected}"
    return subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60)


def test_a_command_whose_output_is_closed_does_its_work(semel_broker: Broker) -> None:
    # Its first socket got the number of the output, and the event loop ended the process.
    ended = semel_command(f"topic create closed-output --bootstrap {semel_broker.bootstrap_servers}", ">&-")
    assert (ended.returncode, ended.stderr) == (0, "")
    with semel.Admin({"bootstrap.servers": semel_broker.bootstrap_servers}) as admin:
        assert "closed-output" in admin.list_topics()


def test_output_that_goes_to_a_full_disk_is_one_line(semel_broker: Broker) -> None:
    ended = semel_command(f"topic list --bootstrap {semel_broker.bootstrap_servers}", ">/dev/full")
    assert ended.returncode == 1
    assert ended.stderr == "Error: the output cannot be written: No space left on device\n"


def test_a_broker_serves_although_its_output_goes_to_a_full_disk(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "semel", "broker", "start", "--listen", address, "--data", str(tmp_path)]

    def is_there() -> bool:
        with suppress(OSError), Raw(address) as raw:
            return bool(raw.create("a"))
        return False

    with open("/dev/full", "w") as full, subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE) as process:
        try:
            until(is_there, what="a broker that creates topics")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert (tmp_path / ".kafka_cleanshutdown").exists()

"""What a broker says about its ZooKeeper: a wrong address before it connects, and once that ZooKeeper is away."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from semel.broker.replication.to_zookeeper import Absences, check_address, why_no_start
from semel.cluster import session as zk
from semel.cluster.session import SessionState
from semel.config import BROKER, ConfigError
from semel.machines.znodes.values import UnreadableZnode
from semel.simulation.zookeeper.on_a_socket import ZooKeeperOnASocket
from tests.support.processes import free_port


@pytest.mark.parametrize(
    ("connect", "why"),
    [
        ("zk:abc", "'zk:abc' is not HOST:PORT"),
        ("zk:99999", "'zk:99999' is not HOST:PORT"),
        ("zk:0", "'zk:0' is not HOST:PORT"),
        (",,,", "'nothing' is not HOST:PORT"),
        ("zk-1:2181,,zk-2:2181", "'nothing' is not HOST:PORT"),
        ("zk-1 zk-2", "'zk-1 zk-2' is not HOST:PORT"),
        ("/semel", "'nothing' is not HOST:PORT"),
        ("zk:2181//semel", "the chroot //semel has an empty name"),
        ("zk:2181/a//b", "the chroot /a//b has an empty name"),
        ("zk:2181/../b", "ZooKeeper has no names . and .. in a chroot"),
        ("zk:2181/a/.", "ZooKeeper has no names . and .. in a chroot"),
        ("zk-1:2181/a,zk-2:2181/a", "the chroot comes once, after the last host"),
    ],
)
def test_an_address_that_is_none_is_refused_in_words(connect: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^zookeeper.connect={connect}: {why}"):
        check_address(connect)


@pytest.mark.parametrize("connect", ["zk", "zk:2181", "zk-1:1,zk-2 , 10.0.0.1:3/a/b/", "[::1]:2181/x", "zk:2181/"])
def test_addresses_as_kafka_takes_them_are_taken(connect: str) -> None:
    check_address(connect)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (zk.NoAuth(), "ZooKeeper does not let this broker read or write what is there"),
        (zk.MultiRefused(0, zk.NoAuth()), "ZooKeeper does not let this broker read or write what is there"),
        (zk.AuthFailed(), "ZooKeeper asks for an identity that this broker did not show"),
        (zk.NoChildrenForEphemerals(), "ZooKeeper refuses what a broker begins with \\(NoChildrenForEphemerals\\)"),
        (zk.SessionExpired(), "ZooKeeper went away while the broker started \\(SessionExpired\\)"),
        (UnreadableZnode("/cluster/id in ZooKeeper cannot be read"), "/cluster/id in ZooKeeper cannot be read"),
    ],
)
def test_what_a_start_meets_in_zookeeper_is_told_in_words(error: Exception, why: str) -> None:
    found = why_no_start(error, BROKER.parse({"zookeeper.connect": "zk:2181/a"}))
    assert found is not None
    with pytest.raises(ConfigError, match=f"^zookeeper.connect=zk:2181/a: {why}"):
        raise found
    assert why_no_start(ValueError(), BROKER.parse({})) is None


@pytest.mark.parametrize("locked", ["/a", "/a/b", "/a/b/brokers/ids"])
def test_a_broker_that_may_not_write_where_it_has_to_says_so(tmp_path: Path, locked: str) -> None:
    """Where only the last step was refused, it was tried again and again, and nothing was said."""
    with ZooKeeperOnASocket() as zookeeper:
        owner = KazooClient(zookeeper.connect, auth_data=[("digest", "a:b")])
        owner.start(30)
        owner.ensure_path(locked)
        owner.set_acls(locked, [make_digest_acl("a", "b", all=True), make_acl("world", "anyone", read=True)])
        command = [sys.executable, "-m", "semel", "broker", "start", "--listen", "127.0.0.1:0"]
        settings = ("--set", f"zookeeper.connect={zookeeper.connect}/a/b", "--set", f"log.dirs={tmp_path}")
        done = subprocess.run([*command, *settings], capture_output=True, text=True, timeout=60, check=False)
        owner.stop()
        owner.close()
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "ZooKeeper does not let this broker read or write what is there" in done.stderr


def test_an_absence_is_told_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    absences = Absences()
    away, there, lost = SessionState.SUSPENDED, SessionState.CONNECTED, SessionState.LOST
    for state in (there, away, away, lost, there, there, away):
        absences.noted(state)
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert told == ["ZooKeeper does not answer", "ZooKeeper answers again", "ZooKeeper does not answer"]


@pytest.mark.parametrize(
    ("host", "why"),
    [("127.0.0.1", "Connection refused"), ("no-such-host.invalid", "there is no host no-such-host.invalid")],
)
def test_a_broker_without_its_zookeeper_says_one_sentence(tmp_path: Path, host: str, why: str) -> None:
    command = [sys.executable, "-m", "semel", "broker", "start", "--listen", "127.0.0.1:0"]
    for setting in (f"zookeeper.connect={host}:{free_port()}", "zookeeper.connection.timeout.ms=1500"):
        command += ("--set", setting)
    done = subprocess.run(
        [*command, "--data", str(tmp_path / "data")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no ZooKeeper answered within 1500 ms" in line and why in line

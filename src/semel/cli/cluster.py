"""`semel cluster`: start several brokers for trying things out, and see how a cluster is and what to do."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import click

from semel.cli.cluster_health import Health, look_at
from semel.cli.connecting import Brokers, cluster_at, common_options
from semel.cli.output import errors_for_people, show
from semel.config import ConfigError

DEFAULT_PORT = 9092
DEFAULT_DATA = "./semel-cluster"
#: How many partitions are named one by one.
NAMED = 20


@click.group()
def cluster() -> None:
    """Start several brokers, and see how a cluster is."""


@cluster.command()
@common_options
def status(brokers: Brokers, as_json: bool) -> None:
    """Show brokers, controller and partitions that lack something, and say what to do.

    The exit code is 0 if all is well, 1 if something is not.
    """
    with errors_for_people(), cluster_at(brokers) as client:
        health = look_at(client)
    if as_json:
        click.echo(json.dumps(health.as_json(), indent=2))
    else:
        _tell(health)
    if not health.is_well:
        raise SystemExit(1)


def _tell(health: Health) -> None:
    controller = "nobody" if health.controller is None else f"broker {health.controller}"
    click.echo(f"cluster {health.cluster_id}  controller: {controller}")
    show(health.brokers, ("broker", "address", "rack", "leads", "replicas", "state"), as_json=False)
    click.echo(f"{_count(health.partitions, 'partition')} of {_count(health.topics, 'topic')}")
    refusing = {(row["topic"], row["partition"]) for row in health.under_min_isr}
    for title, rows in (
        ("offline: nobody leads them", health.offline),
        ("below min.insync.replicas: acks=all is refused", health.under_min_isr),
        (
            "under-replicated: a replica is not in sync",
            [row for row in health.under_replicated if (row["topic"], row["partition"]) not in refusing],
        ),
    ):
        if rows:
            click.echo(f"\n{len(rows)} {title}")
            show(rows[:NAMED], ("topic", "partition", "leader", "replicas", "in_sync", "missing"), as_json=False)
            if len(rows) > NAMED:
                click.echo(f"and {len(rows) - NAMED} more; --json names all")
    click.echo()
    for line in health.advice:
        click.echo(line)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


@cluster.command()
@click.option("--replication-factor", type=click.IntRange(1), metavar="N", help="At least so many replicas for each "
              "partition. None is ever taken away.")
@click.option("--remove", type=int, multiple=True, metavar="BROKER", help="Move everything away from this broker; may "
              "be repeated.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Move only this topic; may be repeated.")
@click.option("--at-once", type=click.IntRange(1), default=50, show_default=True, metavar="N",
              help="How many partitions move at the same time.")
@click.option("--yes", is_flag=True, help="Carry it out without asking.")
@common_options
def balance(
    replication_factor: int | None,
    remove: tuple[int, ...],
    topics: tuple[str, ...],
    at_once: int,
    yes: bool,
    brokers: Brokers,
    as_json: bool,
) -> None:
    """Spread replicas and leaders evenly: show what moves where and why, ask, carry it out.

    It can be interrupted, and run again for the rest. With --json the plan is printed, and carried out with --yes.
    """
    from semel.cli import cluster_balance
    from semel.machines.controller.balancing import Wish

    wish = Wish(frozenset(remove), replication_factor, frozenset(topics) if topics else None)
    with errors_for_people(), cluster_at(brokers) as client:
        seen = cluster_balance.look(client)
        made = cluster_balance.make_plan(seen, wish)
        begins = bool(made.moves or seen.moving) and yes
        if not as_json:
            cluster_balance.tell(seen, made, wish)
            if not made.moves and not seen.moving:
                click.echo("There is nothing to move." if not made.left_alone else "Nothing can be moved.")
            elif not yes:
                begins = click.confirm("Carry it out?")
        if begins:
            cluster_balance.carry_out(client, seen, made, at_once, lambda line: click.echo(line, err=as_json))
    if as_json:
        click.echo(cluster_balance.as_json(seen, made, carried_out=begins))
    elif begins:
        for broker in sorted(remove):
            if not made.replicas_after[broker]:
                click.echo(f"Broker {broker} holds nothing any more: stop it now, before it gets new topics.")
    if made.left_alone:
        raise SystemExit(1)


@cluster.command()
@click.option("--brokers", "count", type=click.IntRange(1, 50), default=3, show_default=True, help="How many brokers.")
@click.option("--port", type=click.IntRange(1, 65000), default=DEFAULT_PORT, show_default=True,
              help="The first broker's port; the others have the next ones.")
@click.option("--data", metavar="DIR", help=f"Where the data lives.  [default: {DEFAULT_DATA}, or a temporary "
              "directory with the built-in ZooKeeper]")
@click.option("--zookeeper", metavar="HOST:PORT", help="A ZooKeeper that runs; several with commas, and a chroot.")
@click.option("--zookeeper-libs", envvar="SEMEL_ZOOKEEPER_LIBS", metavar="DIR",
              help="Apache ZooKeeper's jars: it is started from there with Java.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of every broker; repeatable.")
def up(
    count: int,
    port: int,
    data: str | None,
    zookeeper: str | None,
    zookeeper_libs: str | None,
    settings: tuple[str, ...],
) -> None:
    """Start a cluster on this machine. Ctrl-C stops all of it.

    ZooKeeper is the one that --zookeeper names; otherwise Apache ZooKeeper from --zookeeper-libs, where Java is there;
    otherwise a built-in one, which keeps nothing: then the cluster is gone when it ends.
    """
    from semel.cli.cluster_zookeeper import JavaZooKeeper
    from semel.testing.cluster import Cluster, check_installed

    given = {}
    for pair in settings:
        name, sign, value = pair.partition("=")
        if not sign:
            raise click.BadParameter(f"{pair}: expected name=value", param_hint="--set")
        given[name.strip()] = value.strip()
    try:
        check_installed()
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    java = JavaZooKeeper.found(zookeeper_libs) if zookeeper is None else None
    keeps = zookeeper is not None or java is not None
    if data is not None and not keeps:
        raise click.UsageError(
            "--data: the built-in ZooKeeper keeps nothing, so that brokers cannot go on with this data next time. "
            "Give --zookeeper HOST:PORT, or --zookeeper-libs DIR and have Java on PATH"
        )
    temporary = None if keeps else tempfile.mkdtemp(prefix="semel-cluster-")
    place = Path(temporary or data or DEFAULT_DATA)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        if java is not None:
            zookeeper = java.start(place / "zookeeper")
        what = zookeeper or "built in, keeps nothing: all is gone when this ends"
        click.echo(f"ZooKeeper: {what}")
        ports = list(range(port, port + count))
        try:
            running = Cluster(count, data_dir=place, settings=given, zookeeper=zookeeper, ports=ports)
            running.start(click.echo)
        except (ConfigError, ValueError, OSError, RuntimeError) as error:
            raise click.ClickException(str(error)) from None
        try:
            click.echo(f"bootstrap.servers={running.bootstrap_servers}  (Ctrl-C stops all)")
            _watch(running, ended)
            click.echo("stopping")
        finally:
            running.stop()
    finally:
        if java is not None:
            java.stop()
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _watch(running: Any, ended: threading.Event) -> None:
    """Until it is to end; a broker that ends by itself is told."""
    told: set[int] = set()
    while not ended.wait(0.5):
        for number in running.numbers:
            if number not in told and not running.is_running(number):
                told.add(number)
                click.echo(f"broker {number} has ended: see {running.data_dir / f'broker-{number}.log'}", err=True)
        if len(told) == len(running.numbers):
            raise click.ClickException("every broker has ended")

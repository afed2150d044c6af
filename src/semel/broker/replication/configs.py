"""Settings of topics and brokers in a cluster: changed in ZooKeeper, by any broker, and seen by all.

Guarantees: a change is made to what is in ZooKeeper at that moment, so that two brokers that change the same topic lose
nothing of each other. A change and its notification, which is Kafka's, are written together. It is answered when this
broker uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from semel.broker.replication.local_topics import ALL_BROKERS_NODE
from semel.broker.replication.topics import ATTEMPTS, known_here
from semel.broker.stored.dynamic_settings import dynamic_setting
from semel.cluster.session import MultiRefused, NoNode, ZooKeeperError
from semel.errors import ErrorCode, Refused
from semel.machines.znodes import paths
from semel.machines.znodes.operations import Create, Operation, SetData
from semel.machines.znodes.values import UnreadableZnode, decode_config, encode_config, encode_config_change

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership

#: How many notifications stay: whoever was away reads all settings again anyway.
NOTIFICATIONS_KEPT = 100

#: From the settings that a topic or broker has to those that it is to have. `Refused` if it cannot have them.
Change = Callable[[dict[str, str]], dict[str, str]]


async def alter_topic(cluster: Membership, name: str, change: Change, *, validate_only: bool) -> None:
    """Change a topic's own settings."""
    wanted = await _alter(cluster, "topics", name, change, validate_only=validate_only)
    if not validate_only:
        await known_here(cluster, lambda: cluster.topic_settings(name) == wanted, f"topic {name!r}")


async def alter_broker(cluster: Membership, name: str, change: Change, *, validate_only: bool) -> None:
    """Change the settings of this broker, or with an empty name those of all brokers."""

    def without_secrets(present: dict[str, str]) -> dict[str, str]:
        wanted = change(present)
        secret = [setting for setting in wanted if dynamic_setting(setting).kind == "password"]
        if secret:
            why = f"{secret[0]} is secret, and ZooKeeper would show it: write it into the broker's file and restart it"
            raise Refused(ErrorCode.INVALID_REQUEST, why)
        return wanted

    node = name or ALL_BROKERS_NODE
    wanted = await _alter(cluster, "brokers", node, without_secrets, validate_only=validate_only)
    if not validate_only:
        await known_here(cluster, lambda: dict(cluster.broker_settings(name)) == wanted, f"broker {node}")


async def _alter(
    cluster: Membership, kind: str, entity: str, change: Change, *, validate_only: bool
) -> Mapping[str, str]:
    session, path = cluster.session, paths.config(kind, entity)
    await cluster.connected()
    try:
        for _ in range(ATTEMPTS):
            write: Operation
            await session.sync(path)
            try:
                data, stat = await session.get(path)
                wanted = change(decode_config(data, path))
                write = SetData(path, encode_config(wanted), stat.version)
            except NoNode:
                wanted = change({})
                write = Create(path, encode_config(wanted))
            if validate_only:
                return wanted
            notice = Create(paths.config_change(), encode_config_change(f"{kind}/{entity}"), sequential=True)
            try:
                await session.multi((write, notice))
            except MultiRefused as refused:
                refused.raise_unless_outrun()
                continue  # another broker was faster: once more, on top of its change
            with suppress(ZooKeeperError):  # the change is written; whoever makes the next one tidies up
                await _forget_old_notifications(cluster)
            return wanted
    except ZooKeeperError as error:
        raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper did not answer: {error}") from None
    except UnreadableZnode as error:
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None
    raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"others are changing the settings of {entity}; try again")


async def _forget_old_notifications(cluster: Membership) -> None:
    session = cluster.session
    names = sorted((await session.get_children(paths.CONFIG_CHANGES))[0])
    for name in names[:-NOTIFICATIONS_KEPT]:
        try:
            await session.delete(f"{paths.CONFIG_CHANGES}/{name}")
        except NoNode:
            continue  # another broker tidies up as well

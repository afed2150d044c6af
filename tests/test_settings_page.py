"""docs/settings.md is what the tables say, and what is said to have no effect is what nobody reads."""

from __future__ import annotations

import re

import pytest

from semel import config
from semel.broker.settings_reference import reference
from semel.config import without_effect
from semel.config.security import ZOOKEEPER_TLS
from tests.support.requirements import CHECKOUT

SOURCE = CHECKOUT / "src" / "semel"
SERVER_ROOMS = ("broker", "log", "machines", "records", "cli", "security")
CLIENT_ROOMS = ("client", "machines", "records", "security")

#: Read under a name that is put together from its parts, or through the topic setting that they are a default of.
READ_IN_PARTS = {
    "group.consumer.min.session.timeout.ms",
    "group.consumer.max.session.timeout.ms",
    "group.consumer.min.heartbeat.interval.ms",
    "group.consumer.max.heartbeat.interval.ms",
    "log.retention.hours",
    "log.retention.minutes",
    "log.roll.hours",
    *(row.name for row in ZOOKEEPER_TLS),
}
#: Named, because tools set and take them back, and read by nobody.
NAMED_ALONE = {
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}


def read_by_nobody(table: config.Table, rooms: tuple[str, ...]) -> set[str]:
    text = "\n".join(path.read_text() for room in rooms for path in (SOURCE / room).rglob("*.py"))
    unread = set()
    for row in table:
        if row.name in READ_IN_PARTS or row.doc.startswith("Default of the topic"):
            continue
        attribute = row.name.replace(".", "_")
        named = f'"{row.name}"' in text or re.search(rf"(?:settings|values|config)\.{attribute}\b|{attribute}: ", text)
        if not named or row.name in NAMED_ALONE:
            unread.add(row.name)
    return unread


def test_the_page_is_what_the_tables_say() -> None:
    assert (CHECKOUT / "docs" / "settings.md").read_text() == reference(), (
        "write it again: python -m semel.broker.settings_reference > docs/settings.md"
    )


@pytest.mark.parametrize(
    ("table", "rooms", "told"),
    [
        (config.TOPIC, SERVER_ROOMS, without_effect.TOPIC_SETTINGS),
        (config.BROKER, SERVER_ROOMS, without_effect.BROKER_SETTINGS),
        (config.GROUP, SERVER_ROOMS, {}),
        (config.PRODUCER, CLIENT_ROOMS, without_effect.CLIENT_SETTINGS),
        (config.CONSUMER, CLIENT_ROOMS, without_effect.CLIENT_SETTINGS),
        (config.ADMIN, CLIENT_ROOMS, without_effect.CLIENT_SETTINGS),
    ],
    ids=lambda value: value.noun if isinstance(value, config.Table) else "",
)
def test_a_setting_without_effect_is_said_to_have_none_and_no_other_is(
    table: config.Table, rooms: tuple[str, ...], told: dict[str, str]
) -> None:
    assert read_by_nobody(table, rooms) == set(told)


def test_what_semel_is_not_names_every_setting_without_effect_and_no_other() -> None:
    page = (CHECKOUT / "docs" / "not-kafka.md").read_text().split("## Settings that are accepted")[1]
    names = re.findall(r"`([a-z][a-z.]+)`", page.split("|---|---|")[1])
    told = [without_effect.TOPIC_SETTINGS, without_effect.BROKER_SETTINGS, without_effect.CLIENT_SETTINGS]
    assert sorted(names) == sorted(name for settings in told for name in settings)

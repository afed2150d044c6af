"""docs/settings.md, written from the tables that the broker and the clients read: it cannot say anything else.

`python -m semel.broker.settings_reference > docs/settings.md`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from semel.broker.stored.dynamic_settings import DYNAMIC
from semel.config import ADMIN, BROKER, CONSUMER, GROUP, PRODUCER, TOPIC, Setting, Table
from semel.config.kept import KEPT
from semel.config.without_effect import BROKER_SETTINGS, CLIENT_SETTINGS, TOPIC_SETTINGS

HEAD = """\
# Settings

Every setting under Kafka's name, with Kafka's meaning; those that begin with `semel.` are our own. A broker takes them
from `semel broker start --config FILE` (a server.properties works as it is) and `--set name=value`, a topic from
`semel topic create --set name=value` and from any tool that alters configs, a client from the dictionary it is made
with. A name nobody knows is refused, and so is a value out of bounds.

*At run time* says whether `AlterConfigs` can change it while the broker runs. *No effect* says that the setting is
accepted because Kafka's files and tools name it, and why there is nothing for it to change here.

This page is written by `python -m semel.broker.settings_reference`, and a test holds the two equal.
"""


def reference() -> str:
    """The whole page."""
    no_topic_effect = dict(TOPIC_SETTINGS)
    no_broker_effect = dict(BROKER_SETTINGS)
    for row in TOPIC:
        if row.name in no_topic_effect and row.broker_name is not None:
            no_broker_effect[row.broker_name] = no_topic_effect[row.name]
    lines = [HEAD]
    lines += _section("Broker", BROKER, no_broker_effect, lambda row: row.name in DYNAMIC)
    lines += _section(
        "Topic", TOPIC, no_topic_effect, lambda row: True, "What a topic does not set, the broker's default decides."
    )
    lines += _section(
        "Group", GROUP, {}, lambda row: True, "Of a group of the consumer protocol; the rest is the broker's."
    )
    for title, table in (("Producer", PRODUCER), ("Consumer", CONSUMER), ("Admin", ADMIN)):
        lines += _section(title, table, CLIENT_SETTINGS, None)
    lines += [
        "## Accepted and passed by",
        "Kafka's settings for several nodes, and for locks, tiers, threads and queues that are not here. A name that",
        "ends in a dot stands for all that begin with it.",
        "",
        ", ".join(f"`{name}`" for name in sorted(BROKER.passed_by)),
        "",
        "## Kept without effect",
        "Kafka's dynamic settings that nothing here reads. They may be given at the start, set, described and taken",
        "back while the broker runs, also for one listener (`listener.name.NAME.`). `listeners` and",
        "`listener.security.protocol.map` may be changed likewise: the broker goes on listening where it was started.",
        "",
        ", ".join(f"`{name}`" for name in sorted(KEPT.rows)),
        "",
        "## Refused",
        "Kafka's settings whose promise could not be kept: a broker that is given one does not start.",
        "",
        "| setting | why |",
        "|---|---|",
        *(f"| `{name}` | {why} |" for name, why in sorted(BROKER.refused.items())),
    ]
    return "\n".join(lines) + "\n"


def _section(
    title: str,
    table: Table,
    without_effect: Mapping[str, str],
    changes: Callable[[Setting], bool] | None,
    preface: str = "",
) -> Iterable[str]:
    yield f"## {title}"
    if preface:
        yield from (preface, "")
    columns = ["setting", "type", "default", "allowed"]
    if changes is not None:
        columns.append("at run time")
    columns.append("what it is for")
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in sorted(table, key=lambda row: row.name):
        cells = [f"`{row.name}`", row.kind, _default(row), _allowed(row)]
        if changes is not None:
            cells.append("yes" if changes(row) else "no")
        why = without_effect.get(row.name)
        cells.append(row.doc if why is None else f"{row.doc} *No effect:* {why}.")
        yield f"| {' | '.join(cells)} |"
    yield ""


def _default(row: Setting) -> str:
    text = row.write(row.default)
    return f"`{text}`" if text else "none" if text is None else "empty"


def _allowed(row: Setting) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices)
    if row.least is not None and row.most is not None:
        return f"{row.least:.0f} to {row.most:.0f}"
    if row.least is not None:
        return f"at least {row.least:.0f}"
    return "" if row.most is None else f"at most {row.most:.0f}"


if __name__ == "__main__":
    print(reference(), end="")

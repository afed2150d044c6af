"""The `semel` command: one file per noun, each loaded when it is asked for.

`semel broker start` does not load the command-line library at all: it is the one command whose time to its first
answer somebody measures.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

#: Noun -> what it is about. The module is `semel.cli.<noun>`, the command in it has the noun's name.
NOUNS = {
    "broker": "Run a broker.",
    "topic": "Create, list, describe, change and delete topics.",
    "group": "Look after consumer groups and their offsets.",
    "txn": "Look after transactions.",
    "log": "Look into log files.",
    "pipeline": "Look after exactly-once pipelines on Spark.",
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:2] == ["broker", "start"]:
        from semel.cli.broker import start_without_click

        start_without_click(arguments[2:])
    command_line()(arguments, prog_name="semel")


def command_line() -> click.Group:
    """The command line as the click library sees it."""
    import click

    class Nouns(click.Group):
        """Finds a noun's commands in its own module."""

        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(NOUNS)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in NOUNS:
                return None
            command: click.Command = getattr(import_module(f"semel.cli.{cmd_name}"), cmd_name)
            return command

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl(list(NOUNS.items()))

    from semel import __version__

    @click.command(cls=Nouns, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(__version__, package_name="semel")
    def semel() -> None:
        """An exactly-once event log that speaks Kafka's protocol."""

    return semel

"""The `semel` command: one file per noun, each loaded when it is needed.

`semel broker start` does not load the command-line library at all, so that a broker starts fast.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

#: Noun -> its help text. The module is `semel.cli.<noun>`, and the command in it has the name of the noun.
NOUNS = {
    "broker": "Run a broker.",
    "cluster": "Start several brokers, and see how a cluster is.",
    "topic": "Create, list, describe, change and delete topics.",
    "group": "List, describe, move and delete consumer groups.",
    "txn": "List, describe, diagnose and abort transactions.",
    "user": "Create, list and delete users (SCRAM).",
    "acl": "Add, list, remove and explain access rules (ACLs).",
    "cert": "Make certificates for trying things out.",
    "log": "Print and verify log files.",
    "simulate": "Run brokers and clients in a simulated world with faults.",
    "pipeline": "Write, check and run pipelines on Spark; show or delete their progress.",
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_standard_files()
    if arguments[:2] == ["broker", "start"]:
        from semel.cli.broker import start_without_click

        start_without_click(arguments[2:])
    try:
        command_line()(arguments, prog_name="semel")
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Only the output has no name. What is still to be written would fail again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"Error: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _open_standard_files() -> None:
    """Open what was closed (`>&-`): else a socket gets its number, and the event loop ends the process for that."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which gets the lowest number that is free


def command_line() -> click.Group:
    """The click command for the whole command line."""
    import click

    class Nouns(click.Group):
        """Loads a noun's commands from its own module."""

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

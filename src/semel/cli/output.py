"""The output of commands: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from semel.config import ConfigError
from semel.errors import ErrorCode, KafkaError, sentence


def show(
    rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, as_json: bool, err: bool = False
) -> None:
    """Print rows: as JSON with all fields, or as a table of the named columns with numbers aligned right."""
    if as_json:
        click.echo(json.dumps(list(rows), indent=2, default=str), err=err)
        return
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[i]) for line in cells), 0) for i, column in enumerate(columns)]
    numeric = [bool(rows) and all(isinstance(row.get(column), int | float) for row in rows) for column in columns]
    for line in ([column.upper().replace("_", " ") for column in columns], *cells):
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        click.echo("  ".join(padded).rstrip(), err=err)


def printable(text: str) -> str:
    """Text that cannot act on a terminal: others choose the names of topics, groups and clients.

    >>> printable("a\\x1b[2Jb\\nc é")
    'a\\\\x1b[2Jb\\\\nc é'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _text(value: object) -> str:
    return printable(_plain_text(value))


def _plain_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


@contextmanager
def errors_for_people() -> Iterator[None]:
    """End the command with one line and exit code 1 on an error of the broker or in a setting."""
    try:
        yield
    except KafkaError as error:
        raise click.ClickException(in_words(error)) from error
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


#: For an unknown name: the command that lists the known ones.
_LOOK_UP = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "semel topic list",
    ErrorCode.UNKNOWN_TOPIC_ID: "semel topic list",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "semel txn list",
    ErrorCode.GROUP_ID_NOT_FOUND: "semel group list",
}


_DENIED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
)


def in_words(error: KafkaError) -> str:
    """The text of an error for the terminal."""
    if error.code in _DENIED:
        what = sentence(f"{error.code.name}: {error.why or error.code.meaning}")
        return f"{what} An administrator sees why: semel acl check USER OPERATION --topic NAME"
    if error.code in _LOOK_UP:
        what = sentence(f"{error.code.name}: {error.why or error.code.meaning}")
        return f"{what} Check the name: {_LOOK_UP[error.code]}"
    return str(error)

"""`semel log`: print the files of a log, and say what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from semel.cli.output import show
from semel.log.checkpoints import BOOT_ID, CLEAN_SHUTDOWN, EXPECTED_FILES, MANIFEST, MANIFEST_BEFORE
from semel.log.inspection import Inspection, inspect
from semel.log.tails import CUT_PREFIX

_WIDEST = 60
_NOT_OF_A_LOG = {
    ".lock", ".metadata", ".semel_cluster", ".semel_life", CLEAN_SHUTDOWN, BOOT_ID, MANIFEST, MANIFEST_BEFORE,
    EXPECTED_FILES, "meta.properties",
}


@click.group()
def log() -> None:
    """Print and verify log files."""


@log.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="FILE...")
@click.option("--records", is_flag=True, help="Show the records of a log too; records of the coordinators are decoded.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.pass_context
def dump(context: click.Context, files: tuple[Path, ...], records: bool, as_json: bool) -> None:
    """Print and verify files of a log: batches, indexes, producer state, checkpoints. A directory means all of its
    files, a broker's data directory those of all partitions. The exit code is 1 if something is wrong."""
    inspections = [inspect(str(path), records=records) for path in _files_in(files)]
    if as_json:
        click.echo(json.dumps([asdict(inspection) for inspection in inspections], indent=2, default=str))
    else:
        for inspection in inspections:
            _print(inspection)
    if any(inspection.problems for inspection in inspections):
        context.exit(1)


def _files_in(files: Sequence[Path]) -> list[Path]:
    """The files to print: for a directory its files, for a broker's data directory those of its partitions."""
    expanded: list[Path] = []
    for path in files:
        if path.is_dir():
            inner = sorted(path.iterdir())
            expanded.extend(file for file in inner if file.is_file() and not _beside_the_logs(file.name))
            folders = [folder for folder in inner if folder.is_dir() and not _beside_the_logs(folder.name)]
            expanded.extend(_files_in(folders))
        else:
            expanded.append(path)
    return expanded


def _beside_the_logs(name: str) -> bool:
    """Whether a file is not part of a log, or is being deleted: then there is nothing to verify."""
    return (
        name in _NOT_OF_A_LOG or name.startswith(CUT_PREFIX) or name.endswith((".deleted", ".cleaned", ".swap"))
    )


def _print(inspection: Inspection) -> None:
    click.echo(f"{inspection.path}: {inspection.kind}, {_count(len(inspection.rows))}")
    if inspection.rows:
        columns: dict[str, None] = {}
        for row in inspection.rows:
            columns.update(dict.fromkeys(row))
        show([_shorten(row) for row in inspection.rows], list(columns), as_json=False)
    for problem in inspection.problems:
        click.secho(f"WRONG: {problem}", fg="red")
    if not inspection.problems:
        click.echo("nothing wrong")
    click.echo()


def _count(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _shorten(row: Mapping[str, object]) -> dict[str, object]:
    return {name: value if name == "what" else _short(value) for name, value in row.items()}


def _short(value: object) -> object:
    return value[: _WIDEST - 1] + "…" if isinstance(value, str) and len(value) > _WIDEST else value

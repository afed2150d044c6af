"""The table in docs/scenarios.md names tests that exist, and no scenario that one broker can show is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.scenarios.test_ablations import ABLATIONS

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = {*range(1, 29), 30, 31, *range(35, 48), 50}
#: Shown beside the scenario itself, in the tests of the group coordinator.
ABLATED_ELSEWHERE = {
    50: "tests/machines/groups/test_committed_offsets.py::test_without_its_safeguard_the_scenario_fails",
}

_ROW = re.compile(r"\| (\d+) \| ([^|]+) \| ([^|]+) \| (.+) \|")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> dict[int, tuple[str, list[tuple[str, str]]]]:
    found = {}
    for line in (ROOT / "docs" / "scenarios.md").read_text().splitlines():
        row = _ROW.fullmatch(line)
        if row is not None:
            assert int(row[1]) not in found, f"scenario {row[1]} has two rows"
            found[int(row[1])] = row[3].strip(), _TEST.findall(row[4])
    return found


def functions_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(), path)
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_no_scenario_is_missing() -> None:
    listed = rows()
    assert set(listed) == REQUIRED
    assert all(tests for _, tests in listed.values())


def test_every_listed_test_exists() -> None:
    missing = [
        f"{number}: {path}::{name}"
        for number, (_, tests) in rows().items()
        for path, name in tests
        if not (ROOT / path).exists() or name not in functions_in(path)
    ]
    assert missing == []


def test_every_test_named_after_a_scenario_is_listed() -> None:
    listed = {(path, name) for _, tests in rows().values() for path, name in tests}
    unlisted = [
        f"{path.relative_to(ROOT)}::{name}"
        for room in ("scenarios", "machines", "log", "client", "broker")
        for path in (ROOT / "tests" / room).glob("test_*.py")
        for name in functions_in(str(path.relative_to(ROOT)))
        if name.startswith("test_scenario") and (str(path.relative_to(ROOT)), name) not in listed
    ]
    assert unlisted == []


def test_every_scenario_is_shown_to_fail_without_its_safeguard() -> None:
    for place in ABLATED_ELSEWHERE.values():
        path, name = place.split("::")
        assert name in functions_in(path)
    assert {scenario for scenario, *_ in ABLATIONS} | set(ABLATED_ELSEWHERE) == REQUIRED

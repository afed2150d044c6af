"""What is installed is what is used, and the README names our own settings."""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from semel.config import BROKER
from tests.support.requirements import CHECKOUT

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


@functools.cache
def imported() -> set[str]:
    found = set()
    for path in (CHECKOUT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("requirement", PROJECT["project"]["dependencies"])
def test_everything_that_is_installed_to_run_is_imported(requirement: str) -> None:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    assert name.group().replace("-", "_") in imported()


def test_the_package_says_that_it_is_typed_and_ships_what_it_names() -> None:
    package = CHECKOUT / "src" / "semel"
    for pattern in PROJECT["tool"]["setuptools"]["package-data"]["semel"]:
        assert list(package.glob(pattern)), f"nothing matches {pattern}"
    assert (package / "py.typed").exists()


def test_the_readme_names_every_setting_of_our_own() -> None:
    named = set(re.findall(r"`(semel\.[a-z.]+)`", (CHECKOUT / "README.md").read_text()))
    assert {row.name for row in BROKER if row.name.startswith("semel.")} <= named


def test_building_the_package_prints_no_deprecation_warning(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, tmp_path)
    leave_out = shutil.ignore_patterns("*.egg-info", "*.pyx", "*.so", "*.c")
    shutil.copytree(CHECKOUT / "src", tmp_path / "src", ignore=leave_out)
    prepare = "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel('.'))"
    built = subprocess.run(
        [sys.executable, "-W", "default", "-c", prepare], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert built.returncode == 0, built.stderr
    assert "eprecat" not in built.stdout + built.stderr
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    assert "License-Expression: Apache-2.0" in metadata.read_text()


def test_the_configuration_for_wheels_is_understood_by_cibuildwheel() -> None:
    options = ["--print-build-identifiers", "--platform", "linux", "--archs", "x86_64,aarch64"]
    asked = subprocess.run(
        [sys.executable, "-m", "cibuildwheel", *options, str(CHECKOUT)], capture_output=True, text=True, timeout=50
    )
    assert asked.returncode == 0, asked.stderr
    pythons = [version.rpartition(" ")[2] for version in PROJECT["project"]["classifiers"] if ":: 3." in version]
    wanted = {
        f"cp{version.replace('.', '')}-manylinux_{machine}" for version in pythons for machine in ("x86_64", "aarch64")
    }
    assert set(asked.stdout.split()) == wanted
    command = PROJECT["tool"]["cibuildwheel"]["test-command"]
    assert (CHECKOUT / command.partition("{project}/")[2]).exists()


def test_the_check_of_a_wheel_is_not_satisfied_with_the_source() -> None:
    checked = subprocess.run(
        [sys.executable, str(CHECKOUT / "scripts" / "check-wheel")],
        capture_output=True, text=True, timeout=50, env={**os.environ, "PYTHONPATH": str(CHECKOUT / "src")},
    )  # fmt: skip
    assert checked.returncode == 1 and "this is the source, not a wheel" in checked.stdout

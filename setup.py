"""The optional compiled half of the record loops.

Everything about the package is in pyproject.toml. This file only adds `semel.records._speedups`, which is built where
Cython and a C compiler are found; where they are not, the pure Python twins do the same work and one line says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src/semel/records/_speedups.pyx")


class OptionalBuild(build_ext):
    """Builds what can be built: a missing compiler costs speed, never the installation."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # whatever a compiler, or its absence, may raise
            kind = type(error).__name__
            print(f"semel: record loops stay in Python, they could not be compiled ({kind})", file=sys.stderr)


def extensions() -> list[Extension]:
    if not SOURCE.exists():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("semel: record loops stay in Python, Cython is not installed", file=sys.stderr)
        return []
    extension = Extension("semel.records._speedups", [str(SOURCE)], extra_compile_args=["-O3"])
    # By force: Cython compares dates, and a C file left by an older version would be taken for this one's.
    return list(cythonize([extension], language_level=3, force=True))


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})

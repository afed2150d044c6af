"""Reads a properties file that somebody named on the command line, and says what is wrong with it.

It needs no click: `semel broker start` uses it.
"""

from __future__ import annotations

from pathlib import Path

from semel.properties import read_properties


def read_properties_file(path: str, option: str) -> dict[str, str]:
    """Every setting of a file that was given with this option. ValueError names both, also if it cannot be read."""
    try:
        return read_properties(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{option}: cannot read {path}: {error.strerror or error}; name a properties file, or leave {option} out"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{option}: {path} is not text in UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{option}: {path}: {error}") from None

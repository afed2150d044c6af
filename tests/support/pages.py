"""The documentation as tests see it: the pages, and the fenced blocks of a page in their order.

What a block's language means:

- `console`: a shell session that is run. `$ ` begins a command, what follows is what it prints; `...` in it stands for
  anything. A command without output may print what it likes, and must succeed.
- `python` whose first line is `# name.py`: a program. It is written to that file, and a `console` block runs it.
- `properties` whose first line is `# name.properties`: a file of settings. It is written likewise.
- `diff`: a change to the sources, applied to a copy of them in which the page's `console` blocks then run.
- `toml`: part of a pipeline.toml, of docs/pipeline.md; `tests/spark/test_pipeline_page.py` reads it.
- `sh`: commands that are not run; the tests look whether what they name is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.requirements import CHECKOUT

_FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\S+\.(?:py|properties))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    text: str
    line: int

    @property
    def file_name(self) -> str | None:
        """The file that a program or settings are to be saved as; None for another block."""
        match = _FILE.match(self.text) if self.language in ("python", "properties") else None
        return match[1] if match else None


def pages() -> list[Path]:
    """Every page, those in subfolders too."""
    top = [CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*top, *sorted((CHECKOUT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(CHECKOUT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in _FENCE.finditer(text)]

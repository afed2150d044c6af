"""`python -m bench.in_python broker start ...`: the broker without its compiled loops, as where no C compiler is."""

from __future__ import annotations

import sys

# An entry of None is a module that cannot be imported: the Python twins are chosen.
sys.modules["semel.records._speedups"] = None  # type: ignore[assignment]

from semel.cli import main  # noqa: E402

if __name__ == "__main__":
    main()

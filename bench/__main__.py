"""`python -m bench [family ...]`: measures, prints the table, keeps it in `bench/results`."""

from __future__ import annotations

import sys
import time

from bench import cluster, harness, produce, security, spark, start, state, transactions

MODULES = (produce, start, transactions, state, spark, security, cluster)
FAMILIES = {family.name: family for module in MODULES for family in module.FAMILIES}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        print(f"no bench named {', '.join(unknown)}; there are: {', '.join(FAMILIES)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    outcomes: list[harness.Outcome] = []
    for name in names or FAMILIES:
        print(name, flush=True)
        outcomes += harness.run(FAMILIES[name], lambda line: print(line, flush=True))
    print()
    print(harness.table(outcomes))
    path = harness.keep(outcomes, "-".join(names) or "all")
    print(f"\n{time.monotonic() - began:.0f} s, kept in {path.relative_to(harness.CHECKOUT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

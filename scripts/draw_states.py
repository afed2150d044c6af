"""Write docs/states from the state tables in the code. `make states` runs it."""

from __future__ import annotations

from pathlib import Path

from semel.machines.state_pages import documents

if __name__ == "__main__":
    folder = Path(__file__).resolve().parents[1] / "docs" / "states"
    folder.mkdir(exist_ok=True)
    for name, text in documents().items():
        (folder / name).write_text(text)
        print(f"wrote docs/states/{name}")

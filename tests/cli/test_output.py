"""What commands print: names that others have chosen cannot act on the terminal of whoever reads them."""

from __future__ import annotations

import pytest

from semel.cli.output import printable, show


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("payments", "payments"),
        ("Ünï-🙂", "Ünï-🙂"),
        ("a\nb", "a\\nb"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\u202eevil", "\\u202eevil"),
    ],
)
def test_characters_that_cannot_be_seen_are_shown_as_escapes(
    name: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printable(name) == shown
    show([{"group": name, "topics": [name], "offsets": {name: 1}}], ("group", "topics", "offsets"), as_json=False)
    _, row = capsys.readouterr().out.splitlines()
    assert row.split() == [shown, shown, f"{shown}=1"]

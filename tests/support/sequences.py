"""Making a partition refuse a sequence as if it had been used before."""

from __future__ import annotations

from typing import Any

import pytest

from semel.machines.producing.producer_state import ProducerStates


def refuse_first_further_batch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first batch of a producer that has written before is refused, as the partition refuses a reused sequence.
    Returns a list that the epochs of such batches are added to."""
    check, epochs = ProducerStates.check_data, []

    def check_data(self: ProducerStates, producer_id: int, epoch: int, *more: Any) -> Any:
        entry = self.entries.get(producer_id)
        if entry is not None and entry.batches:
            epochs.append(epoch)
            if len(epochs) == 1:
                raise self._out_of_sequence(entry, 0, 0, 1, True)
        return check(self, producer_id, epoch, *more)

    monkeypatch.setattr(ProducerStates, "check_data", check_data)
    return epochs

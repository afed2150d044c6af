"""What a member of a cluster tells its clients about the cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.handlers.metadata import _who_serves_administrators


@pytest.mark.parametrize(("controller", "told"), [(2, 2), (None, 1), (3, 1)])
def test_while_there_is_no_controller_administrators_are_sent_to_whoever_answers(
    controller: int | None, told: int
) -> None:
    """E10. Broker 3 was the controller and is gone."""
    cluster = SimpleNamespace(
        image=SimpleNamespace(controller=controller), reader=SimpleNamespace(registrations={1: None, 2: None})
    )
    broker = SimpleNamespace(node_id=1, cluster=cluster)
    assert _who_serves_administrators(cast(Any, broker)) == told

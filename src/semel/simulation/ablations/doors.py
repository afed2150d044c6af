"""The safeguards of a listener that asks who a client is."""

from __future__ import annotations

from typing import Any

from semel.broker.security.gate import Gate
from semel.broker.security.plain import PlainMechanism
from semel.machines.security.access import AccessRules
from semel.machines.security.authentication import Accepted, Authentication
from semel.machines.security.principals import USER, Principal
from semel.simulation.ablations import Patch, ablation, nothing


@ablation("a password is compared", "secured", faults=("slow network",))
def without_a_password_is_compared(patch: Patch) -> None:
    def judge(self: PlainMechanism, token: bytes) -> Accepted:
        return Accepted(Principal(USER, "keeper"))

    patch.set(PlainMechanism, "_judge", judge)


@ablation("nothing is served before a client has authenticated", "secured", faults=("slow network",))
def without_nothing_is_served_before_a_client_has_authenticated(patch: Patch) -> None:
    serve = Gate.serve

    def serves_all(self: Gate, connection: Any, frame: memoryview) -> Any:
        if not self._machine.is_raw and bytes(frame[:2]) == b"\0\3":  # Metadata
            return self._door.broker.dispatcher.serve(connection, frame)
        return serve(self, connection, frame)

    patch.set(Gate, "serve", serves_all)


@ablation("a session ends", "secured", faults=("slow network",), duration_s=20)
def without_a_session_ends(patch: Patch) -> None:
    def never(self: Authentication, clock_ms: int) -> bool:
        return False

    patch.set(Authentication, "has_expired", never)


@ablation("a new rule ends what was decided before it", "guarded", faults=("pieces",), duration_s=20)
def without_a_new_rule_ends_what_was_decided_before_it(patch: Patch) -> None:
    """Decisions are remembered until a rule changes."""
    patch.set(AccessRules, "_forget_decisions", nothing)

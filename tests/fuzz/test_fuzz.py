"""Every target of `make fuzz` on its seeds, on a few hundred changed seeds, and on all that ever failed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.fuzz.regressions import REGRESSIONS
from tests.fuzz.target import Finding, Target, mutations
from tests.fuzz.targets import TARGETS
from tests.support.requirements import CHECKOUT

#: How many changed seeds each target gets here; slow ones get fewer. `make fuzz` makes a million.
MUTATIONS = {"acls": 200, "sasl": 400, "frames": 400, "recovery": 120}
FAILED = [(name, what, data) for name, found in REGRESSIONS.items() for what, data in found.items()]


def target(name: str) -> Target:
    found: Target = import_module(f"tests.fuzz.{TARGETS[name][0]}").TARGET
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_on_its_seeds_and_on_changed_ones(name: str) -> None:
    tried = target(name)
    seeds = tried.seeds()
    assert seeds
    for data in (*seeds, *mutations(seeds, MUTATIONS.get(name, 1000), 1, tried.max_bytes)):
        try:
            tried.one(data)
        except Exception as error:
            error.add_note(f"{name}: {data.hex()}")
            raise


@pytest.mark.parametrize(("name", "what", "data"), FAILED, ids=[f"{name}-{what}" for name, what, _ in FAILED])
def test_what_failed_once_does_not_fail_again(name: str, what: str, data: str) -> None:
    target(name).one(bytes.fromhex(data))


def test_changed_seeds_are_the_same_in_every_run() -> None:
    first, second = (list(mutations([b"seed", b"other"], 100, 7, 64)) for _ in range(2))
    assert first == second
    assert len(set(first)) > 50


def test_every_target_is_in_the_table_and_watches_modules_that_exist() -> None:
    here = Path(__file__).parent
    modules = {path.stem for path in here.glob("[!t]*.py") if "\nTARGET = Target(" in path.read_text()}
    assert modules == {module for module, _ in TARGETS.values()}
    for name in {watched for _, all_watched in TARGETS.values() for watched in all_watched}:
        path = CHECKOUT / "src" / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), name


# A target that cannot fail finds nothing: each of these removes a safeguard, and the target has to see it.


def expect_finding(name: str) -> None:
    tried = target(name)
    seeds = tried.seeds()
    with pytest.raises(Finding):
        for data in (*seeds, *mutations(seeds, 3000, 1, tried.max_bytes)):
            tried.one(data)


def test_frames_sees_a_buffer_that_is_reused_while_a_request_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.broker.net.memory import MemoryPool

    monkeypatch.setattr(MemoryPool, "take_scratch", lambda self: self.scratch)
    expect_finding("frames")


def test_sasl_sees_a_gate_that_lets_everybody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.broker.security.gate import Gate

    monkeypatch.setattr(
        Gate, "serve", lambda self, connection, frame: self._door.broker.dispatcher.serve(connection, frame)
    )
    expect_finding("sasl")


def test_sasl_sees_a_session_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.machines.security.authentication import Authentication

    monkeypatch.setattr(Authentication, "has_expired", lambda self, clock_ms: False)
    expect_finding("sasl")


def test_scram_sees_a_nonce_that_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.machines.security import scram

    monkeypatch.setattr(scram.hmac, "compare_digest", lambda one, other: True)
    expect_finding("scram")


def test_tokens_sees_a_signature_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.broker.security.oauthbearer import BearerMechanism

    async def believe(self: BearerMechanism, token: object) -> None: ...

    monkeypatch.setattr(BearerMechanism, "_check_signature", believe)
    expect_finding("tokens")


def test_acls_sees_a_rule_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.machines.security.access import AccessRules

    monkeypatch.setattr(AccessRules, "_forget_decisions", lambda self: None)
    expect_finding("acls")


def test_batches_sees_a_twin_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.records import _pure

    monkeypatch.setattr(_pure, "RECORD_SIZE_MIN", 8)
    expect_finding("batches")


def test_recovery_sees_a_log_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.log import recovery

    monkeypatch.setattr(recovery, "check", lambda batch, *, stored: None)
    monkeypatch.setattr("semel.log.segment.check", lambda batch, *, stored: None)
    expect_finding("recovery")

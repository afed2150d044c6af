"""Every target by its name: the module of this folder that has it, and what atheris watches.

Only modules under test are watched: each one more makes every execution slower.
"""

from __future__ import annotations

TARGETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "frames": ("frames", ("semel.broker.net",)),
    "requests": ("wire_requests", ("semel.wire.primitives", "semel.wire.frames")),
    "batches": ("record_batches", ("semel.records",)),
    "codecs": ("codecs", ("semel.records.compression",)),
    "sasl": ("sasl", ("semel.broker.security", "semel.machines.security.authentication")),
    "scram": ("scram", ("semel.machines.security.scram",)),
    "tokens": (
        "bearer_tokens",
        ("semel.machines.security.bearer", "semel.broker.security.oauthbearer", "semel.security.signing_keys"),
    ),
    "acls": ("acls", ("semel.broker.handlers.acls", "semel.broker.access", "semel.machines.security.access")),
    "snapshots": ("snapshots", ("semel.log.snapshots", "semel.machines.producing.producer_state")),
    "files": ("log_files", ("semel.log.checkpoints", "semel.log.manifest", "semel.log.indexes", "semel.broker.stored")),
    "recovery": ("recovery", ("semel.log",)),
    "names": ("names", ("semel.machines.security",)),
    "settings": ("settings_text", ("semel.properties", "semel.security.credentials", "semel.broker.security.plain")),
}

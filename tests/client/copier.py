"""Copies a topic to another with a session, for ever: what the soak test kills."""

from __future__ import annotations

import sys

from semel.client.session import TransactSession


def main(bootstrap: str, source: str, target: str, group: str, number: str) -> None:
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "transactional.id": f"{group}-{number}",
        "auto.offset.reset": "earliest",
        "max.poll.records": 50,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 200,
        "retry.backoff.ms": 20,
        "transaction.timeout.ms": 10_000,
    }
    with TransactSession(config) as session:
        session.subscribe(source)
        print("copying", flush=True)
        while True:
            with session.transaction(timeout_ms=200) as records:
                for record in records:
                    session.send(target, record.value, key=record.key, partition=record.partition)


if __name__ == "__main__":
    main(*sys.argv[1:])

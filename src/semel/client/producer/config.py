"""Checks that a producer's settings do not contradict each other, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping

from semel.config import PRODUCER, ConfigError, Values

_MOST_IN_FLIGHT = 5


def parse_config(config: Values | Mapping[str, object]) -> Values:
    """Parse the settings. An error names those that contradict each other, and says which to change."""
    values = config if isinstance(config, Values) else PRODUCER.parse(config)
    if values.table is not PRODUCER:
        raise TypeError(f"these are settings of a {values.table.noun}, not of a producer")
    given = values.explicit
    acks_all = values["acks"] in ("all", "-1")
    if values["transactional.id"] is not None and not values["enable.idempotence"]:
        raise ConfigError("transactional.id needs enable.idempotence=true: remove enable.idempotence=false")
    if values["enable.idempotence"] and not acks_all:
        if "enable.idempotence" in given or values["transactional.id"] is not None:
            raise ConfigError(f"enable.idempotence=true needs acks=all, not acks={values['acks']}: change one of them")
        # As in Kafka: acks other than all turns the default idempotence off.
        return parse_config(PRODUCER.parse({**{name: values[name] for name in given}, "enable.idempotence": False}))
    if values["enable.idempotence"]:
        in_flight = values["max.in.flight.requests.per.connection"]
        if in_flight > _MOST_IN_FLIGHT:
            raise ConfigError(
                f"max.in.flight.requests.per.connection={in_flight}: a broker remembers {_MOST_IN_FLIGHT} batches of a "
                f"producer, so enable.idempotence=true allows at most {_MOST_IN_FLIGHT}"
            )
        if values["retries"] == 0:
            raise ConfigError("retries=0 contradicts enable.idempotence=true: leave retries out")
    least = values["linger.ms"] + values["request.timeout.ms"]
    if values["delivery.timeout.ms"] < least:
        if "delivery.timeout.ms" in given:
            raise ConfigError(
                f"delivery.timeout.ms={values['delivery.timeout.ms']} must be at least linger.ms + request.timeout.ms, "
                f"which is {least}"
            )
        return parse_config(PRODUCER.parse({**{name: values[name] for name in given}, "delivery.timeout.ms": least}))
    return values

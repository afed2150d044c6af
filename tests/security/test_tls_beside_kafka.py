"""Key stores that cannot be used, given to a running broker: refused with the code that Apache Kafka gives."""

from __future__ import annotations

import pytest

from semel.wire.messages.configs import IncrementalAlterConfigsRequest
from semel.wire.messages.metadata import MetadataRequest
from tests.broker.raw import Raw
from tests.security.conftest import Locks

pytestmark = pytest.mark.java


def code_of(locks: Locks, name: str, value: str) -> int:
    with Raw(locks.plaintext) as raw:
        node_id = raw.ask(MetadataRequest(topics=None)).brokers[0].node_id
        change = IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value=value)
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4, resource_name=str(node_id), configs=[change]
        )
        answer = raw.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)).responses[0]
        return int(answer.error_code)


def test_a_key_store_that_cannot_be_used_is_refused_as_by_apache_kafka(
    locked_kafka: Locks, locked_semel: Locks
) -> None:
    for name, value, expected in [
        ("listener.name.ssl.ssl.keystore.location", "/absent", 42),
        ("listener.name.ssl.ssl.keystore.location", str(locked_kafka.authority_file), 42),
        ("listener.name.ssl.ssl.keystore.location", str(locked_kafka.broker_file), 0),
        ("listener.name.absent.ssl.keystore.location", "/absent", 0),
        ("ssl.keystore.location", "/absent", 42),
    ]:
        codes = [code_of(locks, name, value) for locks in (locked_kafka, locked_semel)]
        assert codes == [expected, expected], (name, value, codes)

"""The pytest plugin: a test that uses `semel_broker` gets its own running broker, which is removed afterwards.

Installing Semel registers the fixture with pytest, so a test only has to name it. The broker keeps its data in the
test's temporary directory and listens on a free port of 127.0.0.1. A marker gives it settings, with Kafka's names, and
security:

    @pytest.mark.semel_broker(settings={"num.partitions": 3}, security=semel.Security(users=["alice"]))
    def test_orders(semel_broker):
        producer = confluent_kafka.Producer(semel_broker.client_settings("alice"))

`@pytest.mark.semel(**{"num.partitions": 3})` is a shorter way to give settings alone. A marker at a test goes before
one at its class or module: settings add up, security is that of the nearest.

`semel_cluster` is a cluster of three broker processes (`semel.Cluster`) in the same way. The tests of a module share
it, because it takes longer to start: a test that kills a broker restarts it. `pytest.mark.semel_cluster(brokers=3,
settings=...)` of the module, as `pytestmark`, is what it is made with. A test or class that has the marker itself gets
a cluster for each of its tests. Fixtures of module scope ask for `semel_module_cluster`, which is the shared one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from semel.broker.embedded import Broker
    from semel.testing.cluster import Cluster

_ARGUMENTS = ("settings", "security")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "semel(**settings): settings of the broker behind the semel_broker fixture")
    config.addinivalue_line(
        "markers", "semel_cluster(brokers=3, settings=None, cuts=False): what the fixture's cluster is made with"
    )
    config.addinivalue_line(
        "markers", "semel_broker(settings=None, security=None): what the broker behind the fixture is made with"
    )


@pytest.fixture
def semel_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A running broker for this test, at `.bootstrap_servers`; `.client_settings(user)` is for one with security."""
    from semel.broker.embedded import Broker

    settings: dict[str, object] = {}
    security: Any = None
    markers = [marker for marker in request.node.iter_markers() if marker.name in ("semel", "semel_broker")]
    for marker in reversed(markers):
        if marker.name == "semel":
            settings.update(marker.kwargs)
            continue
        settings.update(_given_settings(marker))
        security = marker.kwargs.get("security", security)
    with Broker(tmp_path / "semel-data", settings=settings, security=security) as broker:
        yield broker


@pytest.fixture(scope="module")
def semel_module_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster that the tests of this module share."""
    with _cluster_of(request.node) as cluster:
        yield cluster


@pytest.fixture
def semel_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running cluster, with `.bootstrap_servers`, `.kill(n)`, `.restart(n)`: the module's, or the test's own."""
    marked = request.node.iter_markers_with_node("semel_cluster")
    if any(isinstance(node, (pytest.Function, pytest.Class)) for node, _ in marked):
        with _cluster_of(request.node) as cluster:
            yield cluster
    else:
        yield request.getfixturevalue("semel_module_cluster")


def _cluster_of(node: pytest.Item | pytest.Collector) -> Cluster:
    """A cluster as the markers of a test or module say: they add up, the nearest goes first."""
    from semel.testing.cluster import Cluster

    arguments: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers("semel_cluster"))):
        arguments.update(marker.kwargs)
        if marker.args or not arguments.keys() <= {"brokers", "settings", "cuts"}:
            raise pytest.UsageError("@pytest.mark.semel_cluster takes brokers, settings and cuts, by name")
    return Cluster(**arguments)


def _given_settings(marker: pytest.Mark) -> Mapping[str, object]:
    unknown = [name for name in marker.kwargs if name not in _ARGUMENTS]
    if marker.args or unknown:
        named = f"not {', '.join(unknown)}" if unknown else "by name"
        raise pytest.UsageError(f"@pytest.mark.semel_broker takes {' and '.join(_ARGUMENTS)}, {named}")
    settings = marker.kwargs.get("settings") or {}
    if not isinstance(settings, Mapping):
        kind = type(settings).__name__
        raise pytest.UsageError(f"@pytest.mark.semel_broker: settings are a dict of Kafka's names, not {kind}")
    return settings

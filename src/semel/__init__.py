"""Semel: an exactly-once event log for Python and Spark.

A broker that speaks Kafka's wire protocol and writes Kafka's files, a client, and an exactly-once pipeline on Spark.
The names in this module are the public interface; everything else may change. Each name is loaded on its first use, so
that importing `semel` is fast.

>>> import semel
>>> with semel.Broker() as broker:
...     broker.bootstrap_servers.startswith("127.0.0.1:")
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel import aio as aio
    from semel import errors as errors
    from semel import testing as testing
    from semel.broker.embedded import Broker as Broker
    from semel.broker.embedded_security import Security as Security
    from semel.client.admin.values import NewTopic as NewTopic
    from semel.client.blocking.admin import Admin as Admin
    from semel.client.blocking.consumer import Consumer as Consumer
    from semel.client.blocking.producer import Producer as Producer
    from semel.client.session import TransactSession as TransactSession
    from semel.machines.security.acl_bindings import AclBinding as AclBinding
    from semel.machines.values import TopicPartition as TopicPartition
    from semel.testing.cluster import Cluster as Cluster

__version__ = "0.1.0"

_WHERE = {
    "AclBinding": "semel.machines.security.acl_bindings",
    "Broker": "semel.broker.embedded",
    "Security": "semel.broker.embedded_security",
    "Admin": "semel.client.blocking.admin",
    "Cluster": "semel.testing.cluster",
    "Consumer": "semel.client.blocking.consumer",
    "NewTopic": "semel.client.admin.values",
    "Producer": "semel.client.blocking.producer",
    "TopicPartition": "semel.machines.values",
    "TransactSession": "semel.client.session",
}

#: Modules of the public interface, which need no import of their own.
_MODULES = ("aio", "errors", "testing")

__all__ = [
    "AclBinding",
    "Admin",
    "Broker",
    "Cluster",
    "Consumer",
    "NewTopic",
    "Producer",
    "Security",
    "TopicPartition",
    "TransactSession",
    "__version__",
    "aio",
    "errors",
    "testing",
]


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    if name in _MODULES:
        return import_module(f"semel.{name}")
    raise AttributeError(f"module 'semel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Users, access rules, quotas and tokens of a broker that was alone, taken into the ZooKeeper of the cluster it begins.

Guarantee: they are all in ZooKeeper before the broker counts as a member, so that no rule that denies is lost on the
way. A start that ends amid it does the rest when it is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.broker.replication.shared_rules import SharedRules
from semel.broker.stored.access_rules import AccessRuleStore
from semel.broker.stored.delegation_tokens import DelegationTokenStore
from semel.broker.stored.quotas import QuotaStore
from semel.broker.stored.scram import ScramStore
from semel.config import ConfigError
from semel.errors import Refused
from semel.machines.security.access import AccessRules

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer
    from semel.broker.stored.metadata_store import LocalMetadataStore


async def bring_access(broker: BrokerServer, store: LocalMetadataStore) -> None:
    """Write what the data directory has. ConfigError says what ZooKeeper cannot hold."""
    assert broker.cluster is not None
    shared = broker.cluster.shared
    users, quotas, rules = ScramStore(store), QuotaStore(store), AccessRules()
    AccessRuleStore(store, rules)
    tokens = DelegationTokenStore(store, broker.stores.no_tokens()).tokens
    await shared.load()
    assert shared.tokens is not None
    try:
        if len(rules):
            await (shared.rules or SharedRules(shared, AccessRules())).add(rules)
        await shared.scram.replace({key: users.get(*key) for key in users})
        await shared.quotas.replace(dict(quotas.items()))
        for token in tokens:
            await shared.tokens.put(token)
    except Refused as refused:
        raise ConfigError(
            f"zookeeper.connect: what this broker has of users, rules and quotas cannot be brought into a cluster: "
            f"{refused.why}. Remove it while the broker is alone"
        ) from None

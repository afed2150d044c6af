"""What `docs/states` says about each state table. The tables themselves stand beside the machines that use them.

Every table has one page here, and every state one sentence; `tests/machines/test_state_pages.py` holds that.
"""

from __future__ import annotations

from semel.machines.groups.classic.group import CLASSIC_GROUP_TABLE, ClassicGroupState
from semel.machines.groups.classic.member import CLASSIC_MEMBERSHIP_TABLE, ClassicMembershipState
from semel.machines.groups.consumer.member import CONSUMER_MEMBERSHIP_TABLE, ConsumerMembershipState
from semel.machines.reading.fetch_positions import POSITION_TABLE, PositionState
from semel.machines.replication.follower import FOLLOWING_TABLE, FollowingState
from semel.machines.replication.leader import LEADERSHIP_TABLE, LeadershipState
from semel.machines.security.authentication import AUTHENTICATION_TABLE, AuthenticationState
from semel.machines.table import StatePage, bullet
from semel.machines.transactions.producer_states import PRODUCER_TABLE, ProducerState
from semel.machines.transactions.states import TRANSACTION_TABLE, TransactionEvent, TransactionState

TRANSACTION = StatePage(
    name="transaction",
    title="A transaction, on the broker",
    table=TRANSACTION_TABLE,
    source="semel/machines/transactions/states.py",
    opening="What the transaction coordinator knows about one transactional id, and what each request does to it.",
    first=TransactionState.EMPTY,
    begins=TransactionEvent.INIT.value,
    blank="is INVALID_TXN_STATE",
    meanings={
        TransactionState.EMPTY: "The id has a producer id and an epoch. No transaction is open.",
        TransactionState.ONGOING: "A transaction is open: at least one partition or group belongs to it.",
        TransactionState.PREPARE_COMMIT: "The commit is decided and stored. The markers are on their way to the "
        "partitions. Nothing can turn it into an abort.",
        TransactionState.PREPARE_ABORT: "The abort is decided and stored. The markers are on their way.",
        TransactionState.COMPLETE_COMMIT: "All commit markers are written. The next transaction may begin.",
        TransactionState.COMPLETE_ABORT: "All abort markers are written. The next transaction may begin.",
        TransactionState.DEAD: "The id is forgotten: a tombstone is written in place of its record.",
        TransactionState.PREPARE_EPOCH_FENCE: "The epoch is bumped, so that the absent owner is fenced. It is passed "
        "through within one decision on the way to PrepareAbort and never stored.",
    },
    notes=(
        "A client whose InitProducerId led to PrepareEpochFence is told CONCURRENT_TRANSACTIONS and comes back when "
        "the "
        "abort is complete.",
        "An abort of a transaction in which nothing was written (protocol V2) needs no markers and is complete at "
        "once.",
        "*Repeated* means that the request carries the epoch from before the bump: its answer was lost.",
        "While a step is being written to `__transaction_state`, everyone else is told CONCURRENT_TRANSACTIONS.",
    ),
)

PRODUCER = StatePage(
    name="producer",
    title="A producer, in the client",
    table=PRODUCER_TABLE,
    source="semel/machines/transactions/producer_states.py",
    opening="What a producer may do next. A producer without a transactional id stays in Ready once it has its "
    "identity.",
    first=ProducerState.UNINITIALIZED,
    blank="is a misuse of the producer: the call raises `Misuse`, which says what to call first",
    meanings={
        ProducerState.UNINITIALIZED: "No producer id yet. A transactional producer calls init_transactions().",
        ProducerState.INITIALIZING: "InitProducerId is on its way.",
        ProducerState.READY: "The producer has its identity. No transaction is open.",
        ProducerState.IN_TRANSACTION: "A transaction is open; records and offsets may be sent.",
        ProducerState.PREPARED: "Everything is sent and the transaction is kept open for a two-phase commit. Only a "
        "commit or an abort may follow.",
        ProducerState.COMMITTING: "What is still unsent is sent, then EndTxn(commit).",
        ProducerState.ABORTING: "What is unsent is dropped, then EndTxn(abort) is sent.",
        ProducerState.ABORTABLE_ERROR: "Something in this transaction failed. It must be aborted; the producer lives "
        "on.",
        ProducerState.FATAL_ERROR: "The producer cannot go on, for example because it was fenced. It must be closed.",
    },
    notes=(
        "Aborting leads to Initializing instead of Ready when the producer needs a new epoch or a new identity.",
        "`PRODUCER_VERDICTS` in the same file says which error code of which request is abortable, fatal or retried.",
    ),
)

CLASSIC_GROUP = StatePage(
    name="classic-group",
    title="A classic group, on the broker",
    table=CLASSIC_GROUP_TABLE,
    source="semel/machines/groups/classic/group.py",
    opening="The states of a group of the classic protocol (JoinGroup and SyncGroup), under the names that Kafka's "
    "tools "
    "print.",
    first=ClassicGroupState.EMPTY,
    blank="cannot happen: it would stop the broker with `InvariantViolation`",
    meanings={
        ClassicGroupState.EMPTY: "No members. The group may still hold committed offsets.",
        ClassicGroupState.PREPARING_REBALANCE: "A rebalance has begun. The group waits until every member has joined "
        "again, or until the rebalance timeout.",
        ClassicGroupState.COMPLETING_REBALANCE: "The members of the new generation are known. They wait for the "
        "leader's "
        "assignment.",
        ClassicGroupState.STABLE: "Every member can fetch its assignment. Heartbeats keep the members in the group.",
        ClassicGroupState.DEAD: "What Kafka's tools print for a group that does not exist. A group that is deleted is "
        "removed at once, so no step leads here.",
    },
    notes=(
        "A group of the consumer protocol (KIP-848) has no table: its state is computed from its members "
        "(`semel/machines/groups/consumer/group.py`).",
    ),
)

CLASSIC_MEMBER = StatePage(
    name="classic-member",
    title="A member of a classic group, in the client",
    table=CLASSIC_MEMBERSHIP_TABLE,
    source="semel/machines/groups/classic/member.py",
    opening="What a consumer does to get partitions and to keep them: join, sync, heartbeat, leave.",
    first=ClassicMembershipState.UNJOINED,
    blank="changes nothing: the event is an answer that came too late",
    meanings={
        ClassicMembershipState.UNJOINED: "The member must join, for the first time or again. It may still hold "
        "partitions "
        "from the last generation, and sends heartbeats if it does.",
        ClassicMembershipState.JOINING: "JoinGroup is sent. The coordinator answers when all members have joined.",
        ClassicMembershipState.ASSIGNING: "This member is the leader and computes everybody's assignment.",
        ClassicMembershipState.SYNCING: "SyncGroup is sent. Its answer holds this member's partitions.",
        ClassicMembershipState.STABLE: "The member has its partitions, reads them and sends heartbeats.",
        ClassicMembershipState.LEFT: "The member has left, or nothing is subscribed.",
        ClassicMembershipState.FAILED: "The group has refused this member for good. The error goes to the caller.",
    },
    notes=(
        "A consumer that was not polled for max.poll.interval.ms leaves, and is Unjoined: its next poll joins again.",
        "A subscribe() after leaving makes the member Unjoined.",
    ),
)

CONSUMER_MEMBER = StatePage(
    name="consumer-member",
    title="A member of a consumer-protocol group, in the client",
    table=CONSUMER_MEMBERSHIP_TABLE,
    source="semel/machines/groups/consumer/member.py",
    opening="The consumer protocol (KIP-848) has one request, the heartbeat: it joins, confirms and leaves.",
    first=ConsumerMembershipState.IDLE,
    blank="changes nothing: the event is an answer that came too late",
    meanings={
        ConsumerMembershipState.IDLE: "Nothing is subscribed; no heartbeats are sent.",
        ConsumerMembershipState.JOINING: "Heartbeats with epoch 0 are sent until the coordinator accepts the member.",
        ConsumerMembershipState.MEMBER: "The coordinator knows the member. Heartbeats carry its epoch and confirm "
        "what it "
        "has given up and taken on.",
        ConsumerMembershipState.FAILED: "The group has refused this member for good. The error goes to the caller.",
    },
)

FETCH_POSITION = StatePage(
    name="fetch-position",
    title="The position in a partition, in the consumer",
    table=POSITION_TABLE,
    source="semel/machines/reading/fetch_positions.py",
    opening="What a consumer must find out about a partition before it can fetch from it.",
    first=PositionState.NEEDS_COMMITTED,
    blank="changes nothing: the answer came too late",
    meanings={
        PositionState.NEEDS_COMMITTED: "The group's committed offset must be looked up (OffsetFetch).",
        PositionState.NEEDS_RESET: "An offset must be looked up by timestamp (ListOffsets): auto.offset.reset "
        "applies, or "
        "the caller asked for the beginning, the end or a time.",
        PositionState.FETCHING: "The position is known, and data is fetched from it.",
    },
    notes=(
        "With auto.offset.reset=none, *no committed offset* and *the offset is gone* raise `OffsetOutOfRange` "
        "instead of "
        "leading to NeedsReset.",
        "A consumer without a group has no committed offsets: each partition gets *no committed offset* at once.",
    ),
)

AUTHENTICATION = StatePage(
    name="authentication",
    title="A client that authenticates, on the broker",
    table=AUTHENTICATION_TABLE,
    source="semel/machines/security/authentication.py",
    opening="What a connection to a listener with SASL may send, until it is authenticated and afterwards.",
    first=AuthenticationState.NEW,
    blank="closes the connection at once, and nothing is answered",
    meanings={
        AuthenticationState.NEW: "The client is connected and nothing was asked.",
        AuthenticationState.KNOWS_VERSIONS: "The client knows the versions of the APIs, and has to choose a mechanism.",
        AuthenticationState.EXCHANGE: "The client sends the messages of its mechanism, each in a SaslAuthenticate.",
        AuthenticationState.RAW_EXCHANGE: "The same with an old client, whose messages have nothing but a length.",
        AuthenticationState.AUTHENTICATED: "The client has shown who it is, and its requests are served.",
        AuthenticationState.AUTHENTICATES_AGAIN: "The handshake of a client that authenticates again is looked at. "
        "This is passed through within one request.",
        AuthenticationState.MECHANISM_CHANGED: "A client authenticates again, by another mechanism than before. "
        "Whatever it sends next ends the connection.",
    },
    notes=(
        "An error code ends the connection, after `connection.failed.authentication.delay.ms`. Only in Authenticated "
        "the connection goes on.",
        "In RawExchange no code is told: the connection is closed after the same delay.",
        "A session that has ended (`connections.max.reauth.ms`) is no state: the next request other than a "
        "SaslHandshake closes the connection.",
    ),
)

LEADER_REPLICA = StatePage(
    name="leader-replica",
    title="The leader of a partition, in a cluster",
    table=LEADERSHIP_TABLE,
    source="semel/machines/replication/leader.py",
    opening="Whether a change of the in-sync set is on its way. The rules are in [replication](../replication.md).",
    first=LeadershipState.STABLE,
    blank="changes nothing: one change is made at a time, and a late answer is not heard",
    meanings={
        LeadershipState.STABLE: "The in-sync set is the one that was read from ZooKeeper.",
        LeadershipState.GROWING: "A follower has caught up, and a write that takes it into the set is on its way. It "
        "counts for the high watermark already.",
        LeadershipState.SHRINKING: "Followers lag, and a write that takes them out of the set is on its way. They "
        "still count for the high watermark.",
        LeadershipState.UNSURE: "The write was refused, or nobody knows. Both sets count until ZooKeeper is read "
        "again.",
        LeadershipState.RESIGNED: "ZooKeeper names another leadership. This one answers nobody any more.",
    },
    notes=(
        "The register is the partition's state in ZooKeeper. It changes only by a write at the version that was read.",
        "An old version of the register is not heard. After a sync the same version decides what became of a write.",
    ),
)

FOLLOWER_REPLICA = StatePage(
    name="follower-replica",
    title="A follower of a partition, in a cluster",
    table=FOLLOWING_TABLE,
    source="semel/machines/replication/follower.py",
    opening="What a follower asks its leader next. The rules are in [replication](../replication.md).",
    first=FollowingState.VALIDATING,
    blank="changes nothing: the answer came too late, or to another question",
    meanings={
        FollowingState.VALIDATING: "A fetch asks whether our log is a part of the leader's. Where the logs part, ours "
        "is cut, and the question is asked again.",
        FollowingState.FETCHING: "Our log is a part of the leader's. More of it is fetched.",
        FollowingState.OUT_OF_RANGE: "Our end is not in the leader's log. It is asked where its log begins and ends.",
        FollowingState.WAITING: "After an error, for a while.",
    },
    notes=(
        "Every fetch carries the leader epoch of our last record, so every answer validates our log.",
        "An answer to a fetch of another leader epoch is dropped.",
    ),
)

#: In the order in which the index lists them.
PAGES = (
    TRANSACTION,
    PRODUCER,
    CLASSIC_GROUP,
    CLASSIC_MEMBER,
    CONSUMER_MEMBER,
    FETCH_POSITION,
    AUTHENTICATION,
    LEADER_REPLICA,
    FOLLOWER_REPLICA,
)


def index() -> str:
    """The first page of the folder."""
    rows = "".join(bullet(f"[{page.title}]({page.name}.md): {page.opening}") for page in PAGES)
    return f"""# State tables

A machine with states has a table: from a state, an event leads to the next state or to an error code. The machine asks
its table and nothing else. These pages are written from the tables by `make states`; a test holds the two equal.

{rows}"""


def documents() -> dict[str, str]:
    """Every file of `docs/states` with its text."""
    return {"README.md": index(), **{f"{page.name}.md": page.text() for page in PAGES}}

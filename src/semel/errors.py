"""All errors, in four kinds that never mix.

1. `ErrorCode`: the codes of the wire protocol, one row per code of Apache Kafka 4.3, under Kafka's own name.
2. `Refused(code, why)`: raised by machines, logs and decoders, caught once, where a request is dispatched.
3. `InvariantViolation`: from `invariant()`. Never caught: it stops the broker before it can write something wrong.
4. The client's exceptions. The four branches of the tree tell a caller what to do next:

    KafkaError
      Retriable            ask again; nothing was lost and nothing was doubled
        RequestTimedOut
        Disconnected
        ThrottlingQuotaExceeded
      AbortTransaction     abort, then begin again: the producer stays usable
        CommitFailed         the group moved on while this member was working
        OutOfOrderSequence   records may be missing from what was sent
        ProducerOutdated     the epoch or id is no longer current; aborting renews it
      Fatal                close the client, it cannot go on
        ClientClosed         it was closed before this was done
        ProducerFenced       a newer producer has the same transactional id
        MemberFenced         a newer consumer has the same group.instance.id
        AuthenticationFailed
          TlsFailed            there is no encrypted connection to the broker
        UnsupportedVersion
      Misuse               the request itself is wrong; repeating it will not help
        AuthorizationFailed
        SecurityDisabled     the broker has no access rules at all
        InvalidRecord
        RecordTooLarge
        OffsetOutOfRange
        TopicExists
        InvalidTopic
        InvalidConfig
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Kind(enum.Enum):
    """The branch of the client's tree an error code belongs to."""

    NONE = "none"
    RETRIABLE = "retriable"
    ABORTABLE = "abortable"
    FATAL = "fatal"
    MISUSE = "misuse"


_NONE, _RETRY, _ABORT, _FATAL, _MISUSE = Kind.NONE, Kind.RETRIABLE, Kind.ABORTABLE, Kind.FATAL, Kind.MISUSE


class ErrorCode(enum.IntEnum):
    """One row per error code: its number, what a client does about it, and what it means."""

    kind: Kind
    meaning: str

    def __new__(cls, code: int, kind: Kind = Kind.NONE, meaning: str = "") -> ErrorCode:
        row = int.__new__(cls, code)
        row._value_ = code
        row.kind = kind
        row.meaning = meaning
        return row

    @property
    def code(self) -> int:
        return int(self)

    @property
    def retriable(self) -> bool:
        """The same request may succeed later, on this broker or, after a metadata update, on another."""
        return self.kind is Kind.RETRIABLE

    @property
    def abortable(self) -> bool:
        """The open transaction has to be aborted; the producer can go on. So it is with a record refused for good."""
        return self.kind is Kind.ABORTABLE or self.kind is Kind.MISUSE

    @property
    def fatal(self) -> bool:
        """The client that got this code cannot go on."""
        return self.kind is Kind.FATAL

    # fmt: off
    UNKNOWN_SERVER_ERROR = -1, _FATAL, "the broker failed in a way it did not expect"
    NONE = 0, _NONE, "no error"
    OFFSET_OUT_OF_RANGE = 1, _MISUSE, "the partition does not hold this offset"
    CORRUPT_MESSAGE = 2, _RETRY, "a record batch fails its checksum or is otherwise damaged"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _RETRY, "this broker does not have the partition"
    INVALID_FETCH_SIZE = 4, _MISUSE, "the fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, _RETRY, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, _RETRY, "this broker does not lead the partition, or holds no replica of it"
    REQUEST_TIMED_OUT = 7, _RETRY, "the request was not done in time"
    BROKER_NOT_AVAILABLE = 8, _FATAL, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, _RETRY, "the replica is not available"
    MESSAGE_TOO_LARGE = 10, _MISUSE, "a record batch is larger than the topic accepts"
    STALE_CONTROLLER_EPOCH = 11, _FATAL, "another controller has taken over"
    OFFSET_METADATA_TOO_LARGE = 12, _MISUSE, "the text committed with an offset is too long"
    NETWORK_EXCEPTION = 13, _RETRY, "the connection closed before the answer came"
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRY, "the coordinator is still reading its state"
    COORDINATOR_NOT_AVAILABLE = 15, _RETRY, "there is no coordinator at the moment"
    NOT_COORDINATOR = 16, _RETRY, "this broker is not the coordinator asked for"
    INVALID_TOPIC_EXCEPTION = 17, _MISUSE, "the topic's name or use is not valid"
    RECORD_LIST_TOO_LARGE = 18, _MISUSE, "a record batch is larger than a segment"
    NOT_ENOUGH_REPLICAS = 19, _RETRY, "too few replicas are in sync; nothing was written"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _RETRY, "written, but on too few replicas"
    INVALID_REQUIRED_ACKS = 21, _MISUSE, "acks is not one of -1, 0 and 1"
    ILLEGAL_GENERATION = 22, _ABORT, "the group has moved on to another generation"
    INCONSISTENT_GROUP_PROTOCOL = 23, _FATAL, "the member has no protocol in common with its group"
    INVALID_GROUP_ID = 24, _FATAL, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, _ABORT, "the group does not know this member"
    INVALID_SESSION_TIMEOUT = 26, _FATAL, "the session timeout is outside what the broker allows"
    REBALANCE_IN_PROGRESS = 27, _ABORT, "the group is rebalancing and the member must rejoin"
    INVALID_COMMIT_OFFSET_SIZE = 28, _MISUSE, "the offset commit is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, _MISUSE, "not allowed on this topic"
    GROUP_AUTHORIZATION_FAILED = 30, _MISUSE, "not allowed on this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, _MISUSE, "not allowed on this cluster"
    INVALID_TIMESTAMP = 32, _MISUSE, "a record's timestamp is outside what the topic accepts"
    UNSUPPORTED_SASL_MECHANISM = 33, _FATAL, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, _FATAL, "the request does not fit the state of the authentication"
    UNSUPPORTED_VERSION = 35, _FATAL, "the broker does not serve this version of the request"
    TOPIC_ALREADY_EXISTS = 36, _MISUSE, "there is a topic with this name"
    INVALID_PARTITIONS = 37, _MISUSE, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, _MISUSE, "the replication factor is below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, _MISUSE, "the replica assignment is not valid"
    INVALID_CONFIG = 40, _MISUSE, "a setting is not valid"
    NOT_CONTROLLER = 41, _RETRY, "this broker is not the controller"
    INVALID_REQUEST = 42, _MISUSE, "the request is malformed or contradicts itself"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FATAL, "the stored record format cannot do this"
    POLICY_VIOLATION = 44, _MISUSE, "the request goes against a policy of the cluster"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _ABORT, "the producer's sequence numbers have a gap"
    DUPLICATE_SEQUENCE_NUMBER = 46, _MISUSE, "the batch was written before, too long ago to tell its offset"
    INVALID_PRODUCER_EPOCH = 47, _ABORT, "the producer's epoch is an old one"
    INVALID_TXN_STATE = 48, _FATAL, "the transaction is not in a state that allows this"
    INVALID_PRODUCER_ID_MAPPING = 49, _ABORT, "the producer id does not belong to this transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, _FATAL, "the transaction timeout is above what the broker allows"
    CONCURRENT_TRANSACTIONS = 51, _RETRY, "the previous step of this transaction is still being done"
    TRANSACTION_COORDINATOR_FENCED = 52, _FATAL, "a newer transaction coordinator has written already"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _MISUSE, "not allowed to use this transactional id"
    SECURITY_DISABLED = 54, _MISUSE, "the broker runs without an authorizer"
    OPERATION_NOT_ATTEMPTED = 55, _ABORT, "not tried, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, _RETRY, "the broker's disk failed"
    LOG_DIR_NOT_FOUND = 57, _MISUSE, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, _FATAL, "the credentials were not accepted"
    UNKNOWN_PRODUCER_ID = 59, _ABORT, "the partition has nothing on this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, _MISUSE, "the partition is being reassigned"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _MISUSE, "delegation tokens are not enabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, _MISUSE, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _MISUSE, "the delegation token belongs to somebody else"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, _MISUSE, "delegation tokens cannot be asked for on this connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _MISUSE, "not allowed on this delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, _MISUSE, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, _MISUSE, "the type of the principal is not supported"
    NON_EMPTY_GROUP = 68, _MISUSE, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, _MISUSE, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRY, "the broker has forgotten the fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRY, "the fetch session's epoch does not follow the last one"
    LISTENER_NOT_FOUND = 72, _RETRY, "the leader has no listener of the name this connection came in by"
    TOPIC_DELETION_DISABLED = 73, _MISUSE, "topics may not be deleted on this cluster"
    FENCED_LEADER_EPOCH = 74, _RETRY, "the client's leader epoch is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, _RETRY, "the client's leader epoch is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, _MISUSE, "the client cannot read the compression of the stored records"
    STALE_BROKER_EPOCH = 77, _FATAL, "the broker's own registration is an old one"
    OFFSET_NOT_AVAILABLE = 78, _RETRY, "a new leader does not know its high watermark yet"
    MEMBER_ID_REQUIRED = 79, _MISUSE, "join again with the member id given in this answer"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _RETRY, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, _FATAL, "the group is full"
    FENCED_INSTANCE_ID = 82, _FATAL, "another consumer has the same group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _RETRY, "no replica may become leader"
    ELECTION_NOT_NEEDED = 84, _RETRY, "the partition needs no new leader"
    NO_REASSIGNMENT_IN_PROGRESS = 85, _MISUSE, "no reassignment is going on"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _MISUSE, "the group reads this topic, so its offsets stay"
    INVALID_RECORD = 87, _MISUSE, "a record does not pass the broker's checks"
    UNSTABLE_OFFSET_COMMIT = 88, _RETRY, "a transaction is about to decide on these offsets"
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRY, "the quota is used up for now"
    PRODUCER_FENCED = 90, _FATAL, "a newer producer has the same transactional id"
    RESOURCE_NOT_FOUND = 91, _MISUSE, "there is no such resource"
    DUPLICATE_RESOURCE = 92, _MISUSE, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, _MISUSE, "the credential is not good enough"
    INCONSISTENT_VOTER_SET = 94, _FATAL, "sender or receiver is not one of the voters"
    INVALID_UPDATE_VERSION = 95, _MISUSE, "the resource was changed in between"
    FEATURE_UPDATE_FAILED = 96, _MISUSE, "the feature could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FATAL, "a forwarded principal could not be read"
    SNAPSHOT_NOT_FOUND = 98, _MISUSE, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, _MISUSE, "the position is outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, _RETRY, "this broker does not have a topic of this id"
    DUPLICATE_BROKER_REGISTRATION = 101, _FATAL, "another broker has this id"
    BROKER_ID_NOT_REGISTERED = 102, _FATAL, "no broker of this id is registered"
    INCONSISTENT_TOPIC_ID = 103, _RETRY, "the topic's id on disk is another one"
    INCONSISTENT_CLUSTER_ID = 104, _FATAL, "the request is meant for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _MISUSE, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRY, "the fetch session mixes topic names and topic ids"
    INELIGIBLE_REPLICA = 107, _MISUSE, "a replica may not be in sync as asked"
    NEW_LEADER_ELECTED = 108, _MISUSE, "the change was made and the leader is another one now"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _MISUSE, "the offset is in remote storage"
    FENCED_MEMBER_EPOCH = 110, _ABORT, "the member's epoch is fenced: give up all partitions and rejoin"
    UNRELEASED_INSTANCE_ID = 111, _FATAL, "the group.instance.id is still in use"
    UNSUPPORTED_ASSIGNOR = 112, _FATAL, "the group does not support this assignor"
    STALE_MEMBER_EPOCH = 113, _ABORT, "the member's epoch is old: heartbeat first, then repeat"
    MISMATCHED_ENDPOINT_TYPE = 114, _FATAL, "the request went to the wrong kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FATAL, "this kind of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, _MISUSE, "there is no such controller"
    UNKNOWN_SUBSCRIPTION_ID = 117, _MISUSE, "the telemetry subscription is unknown or old"
    TELEMETRY_TOO_LARGE = 118, _MISUSE, "the telemetry is too large"
    INVALID_REGISTRATION = 119, _FATAL, "the controller does not accept the broker's registration"
    TRANSACTION_ABORTABLE = 120, _ABORT, "the transaction failed on the broker; abort it and go on"
    INVALID_RECORD_STATE = 121, _MISUSE, "the record's delivery cannot be acknowledged in this state"
    SHARE_SESSION_NOT_FOUND = 122, _RETRY, "the broker has forgotten the share session"
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRY, "the share session's epoch does not follow the last one"
    FENCED_STATE_EPOCH = 124, _FATAL, "the share group's state has a newer epoch"
    INVALID_VOTER_KEY = 125, _FATAL, "the voter's key is not this replica's"
    DUPLICATE_VOTER = 126, _MISUSE, "the voter is in the set already"
    VOTER_NOT_FOUND = 127, _MISUSE, "the voter is not in the set"
    INVALID_REGULAR_EXPRESSION = 128, _MISUSE, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, _FATAL, "the client's view of the cluster is too old: start from bootstrap again"
    STREAMS_INVALID_TOPOLOGY = 130, _MISUSE, "the topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _MISUSE, "the topology's epoch is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, _MISUSE, "the topology's epoch is an old one"
    SHARE_SESSION_LIMIT_REACHED = 133, _RETRY, "there are too many share sessions"
    # fmt: on

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """The row of a code from a broker; a code that is not known is UNKNOWN_SERVER_ERROR."""
        try:
            return cls(code)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR


#: The longest explanation, in characters. Many repeat a name from the request, and that may have 32 KB: with the words
#: around it the explanation would be longer than a string of the protocol can be.
_LONGEST_WHY = 4_000


class Refused(Exception):
    """A request is refused with an error code. Raised where that is decided, caught in dispatch."""

    def __init__(self, code: ErrorCode, why: str = "") -> None:
        if len(why) > _LONGEST_WHY:
            why = f"{why[: _LONGEST_WHY // 2]} ... {why[-_LONGEST_WHY // 2 :]}"
        super().__init__(code, why)
        self.code = code
        self.why = why

    def __str__(self) -> str:
        return f"{self.code.name}: {self.why or self.code.meaning}"


class RecordsRefused(Refused):
    """A batch is refused for some of its records; `record_errors` says for which (their place in the batch) and why."""

    def __init__(self, code: ErrorCode, why: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, why)
        self.record_errors = record_errors


class InvariantViolation(BaseException):
    """An invariant does not hold. A BaseException, so that no `except Exception` lets the broker go on."""


def invariant(condition: object, why: str) -> None:
    """Stop unless `condition` holds. Unlike `assert` it also works under `python -O`.

    `why` is made even if `condition` holds. Where that costs something on every request, raise `InvariantViolation`.
    """
    if not condition:
        raise InvariantViolation(why)


def sentence(text: str) -> str:
    """The text with a full stop at its end, if it has no punctuation there.

    >>> sentence("there is no topic"), sentence("is it there?")
    ('there is no topic.', 'is it there?')
    """
    return text if text.endswith((".", "?", "!")) else text + "."


class KafkaError(Exception):
    """What a client raises: the code the broker gave, why, and what to do next."""

    what_to_do: ClassVar[str] = "Look at the broker's log."

    def __init__(self, code: ErrorCode, why: str = "") -> None:
        super().__init__(code, why)
        self.code = code
        self.why = why

    def __str__(self) -> str:
        return f"{sentence(f'{self.code.name}: {self.why or self.code.meaning}')} {self.what_to_do}"


class Retriable(KafkaError):
    """The broker could not do it now."""

    what_to_do = "Try again: nothing was lost and nothing was doubled."


class RequestTimedOut(Retriable):
    """No answer in time; an idempotent or transactional producer may repeat it safely."""

    what_to_do = "Try again, or raise request.timeout.ms or delivery.timeout.ms if the brokers are slow."


class Disconnected(Retriable):
    """The connection closed before the answer came."""

    what_to_do = "Try again: the client reconnects by itself. Check bootstrap.servers if it never succeeds."


class ThrottlingQuotaExceeded(Retriable):
    """The quota is used up."""

    what_to_do = "Wait as long as the throttle time in the answer says, then try again."


class AbortTransaction(KafkaError):
    """The open transaction cannot be committed any more."""

    what_to_do = "Abort the transaction and begin it again: the producer stays usable."


class CommitFailed(AbortTransaction):
    """The group gave this member's partitions to another while it was working."""

    what_to_do = "Abort the open transaction, if any, and poll: the member rejoins and reads on from what is committed."


class OutOfOrderSequence(AbortTransaction):
    """The broker misses records that this producer sent before."""

    what_to_do = "Abort the transaction and send its records again; without transactions, records may have been lost."


class ProducerOutdated(AbortTransaction):
    """The producer's id or epoch is no longer the current one."""

    what_to_do = "Abort the transaction: the producer gets a new epoch and can begin again."


class Fatal(KafkaError):
    """This client cannot go on."""

    what_to_do = "Close the client; open a new one once the cause is removed."


class ClientClosed(Fatal):
    """The client was closed before this was done."""

    what_to_do = "Use a new client. close() waits for records as long as its timeout_ms, or delivery.timeout.ms, says."


class ProducerFenced(Fatal):
    """A newer producer took over this transactional id. What this one had open is aborted."""

    what_to_do = "Close this producer: another one with the same transactional.id has taken its place."


class MemberFenced(Fatal):
    """A newer consumer took over this group.instance.id."""

    what_to_do = "Close this consumer: give every running consumer a group.instance.id of its own."


class AuthenticationFailed(Fatal):
    """The broker does not know who this is."""

    what_to_do = "Check security.protocol, sasl.mechanism and the credentials."


class TlsFailed(AuthenticationFailed):
    """There is no encrypted connection to this broker, and there will be none until something is changed."""

    what_to_do = "Check security.protocol, the name in bootstrap.servers, and the certificates (ssl.*)."


class UnsupportedVersion(Fatal):
    """Client and broker have no version of a request in common."""

    what_to_do = "Upgrade the older side, or do without the feature."


class Misuse(KafkaError):
    """The request is wrong, and would be wrong again."""

    what_to_do = "Change the request: repeating it as it is will not help."


class AuthorizationFailed(Misuse):
    """The broker knows who this is, and does not allow it."""

    what_to_do = "Ask for an ACL that allows this principal the operation."


class SecurityDisabled(Misuse):
    """The broker runs without an authorizer: there are no access rules, and everybody may do everything."""

    what_to_do = (
        "To have access rules, start it with authorizer.class.name="
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer and super.users=User:NAME."
    )


class InvalidRecord(Misuse):
    """The topic does not accept a record: its timestamp, its missing key, or its format."""

    what_to_do = "Correct the record, or the settings of the topic."


class RecordTooLarge(Misuse):
    """A record, or its batch, is larger than the topic accepts."""

    what_to_do = "Send smaller records, or raise max.message.bytes of the topic and max.request.size of the producer."


class OffsetOutOfRange(Misuse):
    """The partition does not hold the offset: deleted by retention, or not written yet."""

    what_to_do = "Seek to an offset that exists, or set auto.offset.reset."


class TopicExists(Misuse):
    """There is a topic with this name."""

    what_to_do = "Use the topic, or choose another name."


class InvalidTopic(Misuse):
    """The topic's name is not valid, or the topic may not be used this way."""

    what_to_do = "Use at most 249 of letters, digits, '.', '_' and '-'; internal topics are written by the broker only."


class InvalidConfig(Misuse):
    """A setting is unknown or its value is out of bounds."""

    what_to_do = "Correct the setting named in the message."


_BRANCHES: dict[Kind, type[KafkaError]] = {
    Kind.NONE: KafkaError,
    Kind.RETRIABLE: Retriable,
    Kind.ABORTABLE: AbortTransaction,
    Kind.FATAL: Fatal,
    Kind.MISUSE: Misuse,
}

_E = ErrorCode
_LEAVES: dict[ErrorCode, type[KafkaError]] = {
    code: leaf
    for leaf, codes in {
        RequestTimedOut: (_E.REQUEST_TIMED_OUT,),
        Disconnected: (_E.NETWORK_EXCEPTION,),
        ThrottlingQuotaExceeded: (_E.THROTTLING_QUOTA_EXCEEDED,),
        CommitFailed: (
            _E.ILLEGAL_GENERATION,
            _E.UNKNOWN_MEMBER_ID,
            _E.REBALANCE_IN_PROGRESS,
            _E.FENCED_MEMBER_EPOCH,
            _E.STALE_MEMBER_EPOCH,
        ),
        OutOfOrderSequence: (_E.OUT_OF_ORDER_SEQUENCE_NUMBER,),
        ProducerOutdated: (_E.INVALID_PRODUCER_EPOCH, _E.INVALID_PRODUCER_ID_MAPPING, _E.UNKNOWN_PRODUCER_ID),
        ProducerFenced: (_E.PRODUCER_FENCED,),
        MemberFenced: (_E.FENCED_INSTANCE_ID, _E.UNRELEASED_INSTANCE_ID),
        AuthenticationFailed: (_E.SASL_AUTHENTICATION_FAILED, _E.UNSUPPORTED_SASL_MECHANISM, _E.ILLEGAL_SASL_STATE),
        UnsupportedVersion: (_E.UNSUPPORTED_VERSION,),
        AuthorizationFailed: (
            _E.TOPIC_AUTHORIZATION_FAILED,
            _E.GROUP_AUTHORIZATION_FAILED,
            _E.CLUSTER_AUTHORIZATION_FAILED,
            _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            _E.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ),
        SecurityDisabled: (_E.SECURITY_DISABLED,),
        InvalidRecord: (_E.INVALID_RECORD, _E.INVALID_TIMESTAMP),
        RecordTooLarge: (_E.MESSAGE_TOO_LARGE, _E.RECORD_LIST_TOO_LARGE),
        OffsetOutOfRange: (_E.OFFSET_OUT_OF_RANGE,),
        TopicExists: (_E.TOPIC_ALREADY_EXISTS,),
        InvalidTopic: (_E.INVALID_TOPIC_EXCEPTION,),
        InvalidConfig: (_E.INVALID_CONFIG,),
    }.items()
    for code in codes
}


def error_for(code: ErrorCode, why: str = "") -> KafkaError:
    """The exception a client raises for this code: its own class where there is one, else its branch."""
    return _LEAVES.get(code, _BRANCHES[code.kind])(code, why)

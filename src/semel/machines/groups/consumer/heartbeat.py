"""The consumer protocol's requests (KIP-848): ConsumerGroupHeartbeat, ConsumerGroupDescribe and their timers.

A heartbeat carries a member's subscription and the partitions it owns. The reply is its assignment. All changes are in
the records of the decision; until they are replayed the group is as it was. Only the sessions are in memory alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import blake2b
from uuid import UUID

from semel.errors import ErrorCode, Refused
from semel.machines.groups.classic.group import ClassicGroup, ClassicGroupState
from semel.machines.groups.classic.rebalance import end_all_parked
from semel.machines.groups.classic.records import group_record
from semel.machines.groups.consumer.assignors import ASSIGNORS, AssignedMember, Assignment
from semel.machines.groups.consumer.group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    ResolvedRegex,
    topics_of,
)
from semel.machines.groups.consumer.reconciliation import reconcile
from semel.machines.groups.consumer.records import ConsumerRecords
from semel.machines.groups.consumer.sessions import ConsumerSessions
from semel.machines.groups.migration import to_classic_group, to_consumer_group
from semel.machines.groups.records import group_tombstone
from semel.machines.groups.registry import DecisionDraft, GroupRegistry, MaySee, Timer, TopicsView
from semel.machines.name_pattern import NamePattern
from semel.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

#: From this version on a member chooses its own id.
MEMBER_CHOOSES_ID_SINCE = 1

#: The partitions that a member reports as owned: topic id -> partitions
Said = Mapping[UUID, frozenset[int]]


class ConsumerGroupDraft:
    """The group as it will be when the records of the decision are replayed."""

    __slots__ = ("epoch", "members", "regexes", "replaced_id", "target")

    def __init__(self, group: ConsumerGroup) -> None:
        self.members = dict(group.members)
        self.target = dict(group.target)
        self.regexes = dict(group.regexes)
        self.epoch = group.epoch
        #: A static member's former id, whose partitions its new id inherits.
        self.replaced_id: str | None = None

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*(topics_of(member, self.regexes) for member in self.members.values()))


class ConsumerRebalance:
    """Serves the consumer groups of a registry. Records and effects go into `out`."""

    __slots__ = ("_registry", "sessions")

    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry
        self.sessions = ConsumerSessions(registry)

    @property
    def _topics(self) -> TopicsView:
        return self._registry.topics or {}

    def records_of(self, group_id: str) -> ConsumerRecords:
        return ConsumerRecords(self._registry.partition_for(group_id), group_id)

    # Heartbeat

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        now_ms: int,
        client_id: str,
        client_host: str,
        new_member_id: Callable[[], str],
        out: DecisionDraft,
        may_see: MaySee | None = None,
    ) -> ConsumerGroupHeartbeatResponse:
        self._check(request, version)
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request, now_ms, out)
        joining = request.member_epoch == JOIN_EPOCH
        group = self._group(request.group_id, joining, now_ms, out)
        member_id = request.member_id or new_member_id()
        if len(group.members) >= self._registry.settings.group_consumer_max_size and member_id not in group.members:
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"group {group.group_id} is full")
        said = None
        if request.topic_partitions is not None:
            said = {part.topic_id: frozenset(part.partitions) for part in request.topic_partitions}
        draft = ConsumerGroupDraft(group)
        before = self._member(group, draft, member_id, request, said, out)
        member = _member_after_request(before, request, client_id, client_host)
        after = self.advance(group, draft, before, member, said, now_ms, out, may_see)
        self.sessions.heard_from(group.group_id, after, now_ms)
        reply = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self._registry.timeouts_of(group.group_id).heartbeat_interval_ms,
        )
        subscription_said = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        full = request.rebalance_timeout_ms != -1 and subscription_said and said is not None
        if joining or full or after.assigned != before.assigned:
            reply.assignment = ConsumerGroupHeartbeatResponse.Assignment(
                topic_partitions=[
                    ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in after.assigned.items()
                ]
            )
        return reply

    def advance(
        self,
        group: ConsumerGroup,
        draft: ConsumerGroupDraft,
        before: ConsumerMember,
        member: ConsumerMember,
        said: Said | None,
        now_ms: int,
        out: DecisionDraft,
        may_see: MaySee | None = None,
    ) -> ConsumerMember:
        """Apply a member's subscription, assign again if the group changed, and reconcile the member."""
        records = self.records_of(group.group_id)
        self._subscribe(group, draft, before, member, records, now_ms, out, may_see)
        target_epoch = group.target_epoch
        if draft.epoch > target_epoch:
            self._assign(draft, records, now_ms, out)
            target_epoch = draft.epoch
        ours = {member.member_id, draft.replaced_id}

        def held_by_another(topic_id: UUID, partition: int) -> bool:
            owner = group.owner_of(topic_id, partition)
            return owner is not None and owner not in ours

        after = reconcile(
            member,
            target_epoch,
            draft.target.get(member.member_id, {}),
            self._topic_ids(topics_of(member, draft.regexes)),
            said,
            held_by_another,
            subscription_changed=member.subscribed_topic_names != before.subscribed_topic_names
            or member.subscribed_topic_regex != before.subscribed_topic_regex,
        )
        if after is not member:
            out.records.append(records.current(after))
        return after

    def _check(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        """Refuse an invalid request."""
        epoch = request.member_epoch
        wrong = ""
        if not request.member_id and (version >= MEMBER_CHOOSES_ID_SINCE or epoch > 0 or epoch == LEAVE_EPOCH):
            wrong = "MemberId can't be empty."
        elif request.instance_id == "" or request.rack_id == "":
            wrong = "InstanceId and RackId can't be empty."
        elif epoch == JOIN_EPOCH and request.rebalance_timeout_ms == -1:
            wrong = "RebalanceTimeoutMs must be provided in first request."
        elif epoch == JOIN_EPOCH and (request.topic_partitions is None or request.topic_partitions):
            wrong = "TopicPartitions must be empty when (re-)joining."
        elif epoch == JOIN_EPOCH and request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            wrong = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
            wrong = "InstanceId can't be null."
        elif epoch < LEAVE_STATIC_EPOCH:
            wrong = f"MemberEpoch {epoch} is invalid."
        if wrong:
            raise Refused(ErrorCode.INVALID_REQUEST, wrong)
        assignor = request.server_assignor
        if assignor is not None and assignor not in self._registry.settings.group_consumer_assignors:
            raise Refused(ErrorCode.UNSUPPORTED_ASSIGNOR, f"ServerAssignor {assignor} is not supported.")

    def _group(self, group_id: str, create: bool, now_ms: int, out: DecisionDraft) -> ConsumerGroup:
        """The group. A classic group is converted when its first member of this protocol joins."""
        group = self._registry.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if not create:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if group is None or group.is_simple:
            return ConsumerGroup(group_id)
        if group.state is ClassicGroupState.EMPTY:
            out.records.append(group_tombstone(self._registry.partition_for(group_id), group_id))
            return ConsumerGroup(group_id)
        return self._upgrade(group, now_ms, out)

    def _upgrade(self, group: ClassicGroup, now_ms: int, out: DecisionDraft) -> ConsumerGroup:
        settings = self._registry.settings
        if not (
            settings.allows_upgrade
            and group.uses_consumer_protocol_type
            and len(group.members) < settings.group_consumer_max_size
        ):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")
        try:
            converted = to_consumer_group(group, self._topics)
        except Refused as refused:
            raise Refused(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} cannot be upgraded: {refused.why}"
            ) from refused
        converted.metadata_hash = _metadata_hash(converted.subscribed_topics(), self._topics)
        end_all_parked(group, ErrorCode.REBALANCE_IN_PROGRESS, out)
        out.records.append(group_tombstone(self._registry.partition_for(group.group_id), group.group_id))
        out.records += self.records_of(group.group_id).whole_group(converted, now_ms)
        for member in converted.members.values():
            self.sessions.heard_from(group.group_id, member, now_ms)
        return converted

    def _member(
        self,
        group: ConsumerGroup,
        draft: ConsumerGroupDraft,
        member_id: str,
        request: ConsumerGroupHeartbeatRequest,
        said: Said | None,
        out: DecisionDraft,
    ) -> ConsumerMember:
        """The member that sent the request; `Refused` if it is fenced."""
        joining = request.member_epoch == JOIN_EPOCH
        holder_id = None if request.instance_id is None else group.static_members.get(request.instance_id)
        if request.instance_id is None or (joining and holder_id is None):
            known = group.members.get(member_id)
            if known is not None:
                _check_epoch(known, request.member_epoch, said)
                return known
            if not joining:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of {group.group_id}.")
            return ConsumerMember(member_id)
        holder = self.static_holder(group, request.instance_id, member_id, must_be_same=not joining)
        if not joining:
            _check_epoch(holder, request.member_epoch, said)
            return holder
        if holder.member_id == member_id and holder.member_epoch != LEAVE_STATIC_EPOCH and holder.classic is None:
            return holder
        if holder.member_epoch != LEAVE_STATIC_EPOCH and holder.classic is None:
            raise Refused(
                ErrorCode.UNRELEASED_INSTANCE_ID, f"instance id {request.instance_id} is owned by {holder.member_id}"
            )
        return self.replace_static(group, draft, holder, member_id, out)

    def replace_static(
        self,
        group: ConsumerGroup,
        draft: ConsumerGroupDraft,
        holder: ConsumerMember,
        member_id: str,
        out: DecisionDraft,
    ) -> ConsumerMember:
        """A static member came back with another id. It gets the target of its old id."""
        records = self.records_of(group.group_id)
        member = replace(holder, member_id=member_id, member_epoch=0, previous_member_epoch=0)
        target = draft.target.pop(holder.member_id, {})
        del draft.members[holder.member_id]
        draft.members[member_id] = member
        draft.target[member_id] = target
        draft.replaced_id = holder.member_id
        self.sessions.forget(group.group_id, {holder.member_id})
        out.records += records.end_of_member(holder.member_id)
        out.records += [records.member(member), records.target(member_id, target), records.current(member)]
        return member

    @staticmethod
    def static_holder(group: ConsumerGroup, instance_id: str, member_id: str, *, must_be_same: bool) -> ConsumerMember:
        holder_id = group.static_members.get(instance_id)
        if holder_id is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if must_be_same and holder_id != member_id:
            raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"{member_id} with {instance_id} was fenced by {holder_id}")
        return group.members[holder_id]

    # Subscriptions

    def _subscribe(
        self,
        group: ConsumerGroup,
        draft: ConsumerGroupDraft,
        before: ConsumerMember,
        member: ConsumerMember,
        records: ConsumerRecords,
        now_ms: int,
        out: DecisionDraft,
        may_see: MaySee | None,
    ) -> None:
        """Write a changed subscription. A new epoch begins if the topics of the group changed."""
        if member != before or member.member_id not in draft.members:
            out.records.append(records.member(member))
        draft.members[member.member_id] = member
        topics = self._topics
        if member.subscribed_topic_regex and member.subscribed_topic_regex not in draft.regexes:
            # Refuses an invalid expression before anything is written.
            NamePattern(member.subscribed_topic_regex)
        looked_again = group.checked_topics is not topics
        regex_changed = self._resolve_regexes(draft, records, group.checked_topics, now_ms, out, may_see)
        regex_changed |= member.subscribed_topic_regex != before.subscribed_topic_regex
        bump = regex_changed or member.subscribed_topic_names != before.subscribed_topic_names
        if not bump and not looked_again:
            return
        metadata_hash = _metadata_hash(draft.subscribed_topics(), topics)
        if bump or metadata_hash != group.metadata_hash:
            draft.epoch += 1
            out.records.append(records.epoch(draft.epoch, metadata_hash))
        group.checked_topics = topics

    def _resolve_regexes(
        self,
        draft: ConsumerGroupDraft,
        records: ConsumerRecords,
        checked: Mapping[str, object] | None,
        now_ms: int,
        out: DecisionDraft,
        may_see: MaySee | None,
    ) -> bool:
        """Match the members' expressions with the topics. Returns whether any result changed.

        `checked`: the topics that the known results are about. Where all see all topics, only new names are matched:
        the members of a group may have a thousand expressions, and this is one heartbeat.
        An expression finds what this client may see, as in Kafka: the members that share one share what it found.
        """
        used = {member.subscribed_topic_regex for member in draft.members.values() if member.subscribed_topic_regex}
        for expression in sorted(draft.regexes.keys() - used):
            del draft.regexes[expression]
            out.records.append(records.regex(expression, None))
        if not used:
            return False
        changed, topics = False, self._topics
        old: AbstractSet[str] = frozenset()
        if checked is not None and may_see is None:
            old = topics.keys() & checked.keys()
        new = topics.keys() - old
        for expression in sorted(used):
            known = draft.regexes.get(expression)
            if known is not None and checked is topics:
                continue
            names: AbstractSet[str] = topics.keys() if known is None else new
            kept = frozenset() if known is None else known.topics & old
            pattern = NamePattern(expression) if names else None
            found = kept.union(
                name
                for name in names
                if pattern is not None and pattern.matches(name) and (may_see is None or may_see(name))
            )
            if known is None or known.topics != found:
                version = 1 if known is None else known.version + 1
                draft.regexes[expression] = ResolvedRegex(found, version, now_ms)
                out.records.append(records.regex(expression, draft.regexes[expression]))
                changed = True
        return changed

    def _topic_ids(self, names: Iterable[str]) -> frozenset[UUID]:
        topics = self._topics
        return frozenset(topics[name].topic_id for name in names if name in topics)

    # Assignment

    def _assign(self, draft: ConsumerGroupDraft, records: ConsumerRecords, now_ms: int, out: DecisionDraft) -> None:
        """Compute the target of the new epoch. Only changes are written."""
        assignor = ASSIGNORS[self.assignor_name(draft.members.values())]
        members = {
            member_id: AssignedMember(
                self._topic_ids(topics_of(member, draft.regexes)),
                member.instance_id,
                draft.target.get(member_id, {}),
            )
            for member_id, member in draft.members.items()
        }
        topics = self._topics
        partitions = {
            topics[name].topic_id: topics[name].partitions for name in draft.subscribed_topics() if name in topics
        }
        target: dict[str, Assignment] = assignor(members, partitions)
        for member_id, assignment in target.items():
            if draft.target.get(member_id) != assignment:
                out.records.append(records.target(member_id, assignment))
        draft.target = target
        out.records.append(records.target_epoch(draft.epoch, now_ms))

    def assignor_name(self, members: Iterable[ConsumerMember]) -> str:
        """The assignor that most members ask for, else the broker's first."""
        wanted = Counter(member.server_assignor for member in members if member.server_assignor is not None)
        if wanted:
            return wanted.most_common(1)[0][0]
        return self._registry.settings.group_consumer_assignors[0]

    # Leaving

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, now_ms: int, out: DecisionDraft
    ) -> ConsumerGroupHeartbeatResponse:
        group = self._registry.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = self.static_holder(group, request.instance_id, request.member_id, must_be_same=True)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            # A static member that will come back: it keeps its partitions until its session ends.
            gone = replace(member, member_epoch=LEAVE_STATIC_EPOCH, pending_revocation={})
            out.records.append(self.records_of(group.group_id).current(gone))
        else:
            self.remove(group, {member.member_id}, now_ms, out)
        return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)

    def remove(self, group: ConsumerGroup, gone: set[str], now_ms: int, out: DecisionDraft) -> None:
        """Remove members. A new epoch begins, and the next heartbeat of another member assigns again.

        If only members of the classic protocol are left, the group is converted back to it.
        """
        records = self.records_of(group.group_id)
        self.sessions.forget(group.group_id, gone)
        draft = ConsumerGroupDraft(group)
        for member_id in gone:
            del draft.members[member_id]
        if self._may_downgrade(draft.members):
            self.sessions.forget(group.group_id, draft.members)
            classic = to_classic_group(group, gone, self._topics, now_ms)
            out.records += records.end_of_group(group)
            out.records.append(group_record(self._registry.partition_for(group.group_id), classic))
            return
        out.records += [one for member_id in sorted(gone) for one in records.end_of_member(member_id)]
        used = {member.subscribed_topic_regex for member in draft.members.values()}
        for expression in sorted(draft.regexes.keys() - used):
            del draft.regexes[expression]
            out.records.append(records.regex(expression, None))
        out.records.append(records.epoch(group.epoch + 1, _metadata_hash(draft.subscribed_topics(), self._topics)))

    def _may_downgrade(self, members: Mapping[str, ConsumerMember]) -> bool:
        settings = self._registry.settings
        return (
            bool(members)
            and settings.allows_downgrade
            and len(members) <= settings.group_max_size
            and all(member.classic is not None for member in members.values())
        )

    # Time

    def on_timer(self, group: ConsumerGroup | None, timer: Timer, now_ms: int, out: DecisionDraft) -> None:
        """Remove the member if it is overdue."""
        member = None if group is None else group.members.get(timer.member_id)
        if self.sessions.is_overdue(timer, member, now_ms) and group is not None:
            self.remove(group, {timer.member_id}, now_ms, out)


def _member_after_request(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
) -> ConsumerMember:
    """The member with the fields of the request. A field that is not set keeps its value."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        client_id=client_id,
        client_host=client_host,
        classic=None,
    )


def _check_epoch(member: ConsumerMember, epoch: int, said: Said | None) -> None:
    """Fence a member with a wrong epoch.

    The previous epoch is accepted if the member owns only assigned partitions: it lost the answer with the new epoch.
    """
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return
    lost_an_answer = (
        epoch == member.previous_member_epoch
        and said is not None
        and all(partitions <= member.assigned.get(topic_id, {}).keys() for topic_id, partitions in said.items())
    )
    if epoch > member.member_epoch or not lost_an_answer:
        raise Refused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"epoch {epoch}, but the member is at {member.member_epoch}: it must give up its partitions and rejoin",
        )


def _metadata_hash(subscribed: frozenset[str], topics: TopicsView) -> int:
    """A hash of the subscribed topics and their partitions; 0 if there are none."""
    known = sorted((name, topics[name]) for name in subscribed if name in topics)
    if not known:
        return 0
    digest = blake2b(digest_size=8)
    for name, info in known:
        digest.update(f"{name}\0{info.topic_id}\0{info.partitions}\0".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)

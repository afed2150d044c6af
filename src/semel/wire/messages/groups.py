"""Consumer groups of the classic protocol: the members choose a leader, and the leader assigns."""

from __future__ import annotations

from semel.wire.schema import Bool, Bytes, Int16, Int32, String, field, message, struct


@message(key=11, versions="0-9", flexible=6)
class JoinGroupRequest:
    """Join a group, with the protocols that this member supports."""

    @struct
    class JoinGroupRequestProtocol:
        name: String = ""
        metadata: Bytes = b""

    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = field(-1, since=1)
    member_id: String = ""
    group_instance_id: String | None = field(None, since=5)
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = field(list)
    reason: String | None = field(None, since=8)


@message(key=11, versions="0-9", flexible=6)
class JoinGroupResponse:
    """The generation that was formed. Only its leader gets the members."""

    @struct
    class JoinGroupResponseMember:
        member_id: String = ""
        group_instance_id: String | None = field(None, since=5)
        metadata: Bytes = b""

    throttle_time_ms: Int32 = field(0, since=2)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: String | None = field(None, since=7)
    protocol_name: String | None = field("", nullable_since=7)
    leader: String = ""
    skip_assignment: Bool = field(False, since=9)
    member_id: String = ""
    members: list[JoinGroupResponseMember] = field(list)


@message(key=14, versions="0-5", flexible=4)
class SyncGroupRequest:
    """The assignment of all members, from the leader; empty from the others."""

    @struct
    class SyncGroupRequestAssignment:
        member_id: String = ""
        assignment: Bytes = b""

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field(None, since=3)
    protocol_type: String | None = field(None, since=5)
    protocol_name: String | None = field(None, since=5)
    assignments: list[SyncGroupRequestAssignment] = field(list)


@message(key=14, versions="0-5", flexible=4)
class SyncGroupResponse:
    """This member's share of the assignment."""

    throttle_time_ms: Int32 = field(0, since=1)
    error_code: Int16 = 0
    protocol_type: String | None = field(None, since=5)
    protocol_name: String | None = field(None, since=5)
    assignment: Bytes = b""


@message(key=12, versions="0-4", flexible=4)
class HeartbeatRequest:
    """The member is alive, in this generation."""

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field(None, since=3)


@message(key=12, versions="0-4", flexible=4)
class HeartbeatResponse:
    """No error, or a request to rejoin."""

    throttle_time_ms: Int32 = field(0, since=1)
    error_code: Int16 = 0


@message(key=13, versions="0-5", flexible=4)
class LeaveGroupRequest:
    """Remove a member, or from version 3 several members."""

    @struct
    class MemberIdentity:
        member_id: String = field("", since=3)
        group_instance_id: String | None = field(None, since=3)
        reason: String | None = field(None, since=5)

    group_id: String = ""
    member_id: String = field("", until=2)
    members: list[MemberIdentity] = field(list, since=3)


@message(key=13, versions="0-5", flexible=4)
class LeaveGroupResponse:
    """The result for each member."""

    @struct
    class MemberResponse:
        member_id: String = field("", since=3)
        group_instance_id: String | None = field("", since=3)
        error_code: Int16 = field(0, since=3)

    throttle_time_ms: Int32 = field(0, since=1)
    error_code: Int16 = 0
    members: list[MemberResponse] = field(list, since=3)


@message(key=15, versions="0-6", flexible=5)
class DescribeGroupsRequest:
    """Ask for the state of classic groups."""

    groups: list[String] = field(list)
    include_authorized_operations: Bool = field(False, since=3)


@message(key=15, versions="0-6", flexible=5)
class DescribeGroupsResponse:
    """State, protocol and members of each group."""

    @struct
    class DescribedGroupMember:
        member_id: String = ""
        group_instance_id: String | None = field(None, since=4)
        client_id: String = ""
        client_host: String = ""
        member_metadata: Bytes = b""
        member_assignment: Bytes = b""

    @struct
    class DescribedGroup:
        error_code: Int16 = 0
        error_message: String | None = field(None, since=6)
        group_id: String = ""
        group_state: String = ""
        protocol_type: String = ""
        protocol_data: String = ""
        members: list[DescribeGroupsResponse.DescribedGroupMember] = field(list)
        authorized_operations: Int32 = field(-2_147_483_648, since=3)

    throttle_time_ms: Int32 = field(0, since=1)
    groups: list[DescribedGroup] = field(list)


@message(key=16, versions="0-5", flexible=3)
class ListGroupsRequest:
    """List groups of these states and types."""

    states_filter: list[String] = field(list, since=4)
    types_filter: list[String] = field(list, since=5)


@message(key=16, versions="0-5", flexible=3)
class ListGroupsResponse:
    """The groups this broker coordinates."""

    @struct
    class ListedGroup:
        group_id: String = ""
        protocol_type: String = ""
        group_state: String = field("", since=4)
        group_type: String = field("", since=5)

    throttle_time_ms: Int32 = field(0, since=1)
    error_code: Int16 = 0
    groups: list[ListedGroup] = field(list)


@message(key=42, versions="0-2", flexible=2)
class DeleteGroupsRequest:
    """Delete groups and their offsets."""

    groups_names: list[String] = field(list)


@message(key=42, versions="0-2", flexible=2)
class DeleteGroupsResponse:
    """The result for each group."""

    @struct
    class DeletableGroupResult:
        group_id: String = ""
        error_code: Int16 = 0

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = field(list)

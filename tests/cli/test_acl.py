"""`semel acl`: rules are added, listed, removed and explained, on Semel and on Apache Kafka."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from semel import AclBinding, Broker, Security
from semel.cli import command_line
from semel.cli.acl_check import AuthorizerSettings, answer
from semel.cli.acl_options import Resource, Wanted
from semel.machines.security.access import Operation, ResourceType
from tests.support.authorizing_kafka import ADMIN, PASSWORD, AuthorizingKafka
from tests.support.requirements import require_kafka
from tests.support.waiting import until

Types = Callable[..., Result]


def properties(path: Path, settings: dict[str, object]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def typed(*words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(command_line(), ["acl", *words], input=answer)


@pytest.fixture(scope="module", params=["semel", pytest.param("kafka", marks=pytest.mark.java)])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The client.properties of an administrator."""
    path = tmp_path_factory.mktemp("acl") / "client.properties"
    if request.param == "semel":
        with Broker(security=Security(["root", "alice"], super_users=["root"])) as broker:
            yield properties(path, broker.client_settings("root"))
        return
    require_kafka()
    with AuthorizingKafka() as kafka:
        login = {"sasl.mechanism": "PLAIN", "sasl.username": ADMIN, "sasl.password": PASSWORD}
        yield properties(
            path, {"bootstrap.servers": kafka.admin_servers, "security.protocol": "SASL_PLAINTEXT", **login}
        )


@pytest.fixture
def types(file: str) -> Iterator[Types]:
    def run(*words: str, answer: str | None = None) -> Result:
        return typed(*words, "--command-config", file, answer=answer)

    yield run
    for rule in rules(run):
        run("remove", rule["principal"], "--yes")
    until(lambda: rules(run) == [], what="all rules to be gone")


def rules(types: Types, *words: str) -> list[dict[str, Any]]:
    listed = types("list", "--json", *words)
    assert listed.exit_code == 0, listed.output
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return found


def short(found: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {(one["operation"], one["resource_type"], one["resource_name"]) for one in found}


def test_rules_are_added_and_listed_in_a_table_and_as_json(types: Types) -> None:
    added = types("add", "alice", "--operation", "Read", "--operation", "describe", "--topic", "payments")
    assert added.exit_code == 0, added.output
    until(lambda: len(rules(types)) == 2, what="both rules")
    table = types("list").output.splitlines()
    assert table[0].split() == [
        "PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "TYPE", "RESOURCE", "NAME", "PATTERN", "TYPE", "HOST"
    ]  # fmt: skip
    assert [line.split() for line in table[1:]] == [
        ["User:alice", "allow", operation, "topic", "payments", "literal", "*"] for operation in ("describe", "read")
    ]


def test_producer_and_consumer_stand_for_what_kafka_acls_gives_them(types: Types) -> None:
    types("add", "alice", "--producer", "--topic", "payments", "--transactional-id", "till")
    types("add", "User:bob", "--consumer", "--topic", "payments", "--group", "billing")
    until(lambda: len(rules(types)) == 8, what="eight rules")
    assert short(rules(types, "--principal", "alice")) == {
        ("write", "topic", "payments"), ("describe", "topic", "payments"), ("create", "topic", "payments"),
        ("write", "transactional_id", "till"), ("describe", "transactional_id", "till"),
    }  # fmt: skip
    assert short(rules(types, "--principal", "bob")) == {
        ("read", "topic", "payments"), ("describe", "topic", "payments"), ("read", "group", "billing")
    }  # fmt: skip


def test_a_list_about_a_name_has_all_rules_that_decide_about_it(types: Types) -> None:
    types("add", "alice", "--operation", "read", "--topic", "pay", "--prefixed")
    types("add", "User:*", "--operation", "all", "--topic", "*", "--host", "10.0.0.7", "--deny")
    types("add", "alice", "--operation", "read", "--topic", "ledger")
    until(lambda: len(rules(types)) == 3, what="three rules")
    assert short(rules(types, "--topic", "payments")) == {("read", "topic", "pay"), ("all", "topic", "*")}
    assert short(rules(types, "--topic", "payments", "--operation", "all")) == {("all", "topic", "*")}
    assert short(rules(types, "--host", "10.0.0.7")) == {("all", "topic", "*")}


def test_removing_asks_first_and_removes_exactly_what_it_showed(types: Types) -> None:
    types("add", "alice", "--operation", "read", "--topic", "payments", "--topic", "ledger")
    types("add", "alice", "--operation", "read", "--topic", "payments", "--prefixed")
    until(lambda: len(rules(types)) == 3, what="three rules")
    no = types("remove", "alice", "--topic", "payments", answer="n\n")
    assert no.exit_code == 1
    assert "Remove this rule?" in no.output
    assert len(rules(types)) == 3
    yes = types("remove", "alice", "--topic", "payments", answer="y\n")
    assert yes.exit_code == 0, yes.output
    until(lambda: len(rules(types)) == 2, what="two rules")
    assert {(one["resource_name"], one["pattern_type"]) for one in rules(types)} == {
        ("ledger", "literal"), ("payments", "prefixed")
    }  # fmt: skip
    nothing = types("remove", "alice", "--topic", "payments", "--yes")
    assert nothing.exit_code == 1
    assert nothing.output == "Error: no rule matches: semel acl list shows those that are there\n"
    assert types("remove", "alice", "--yes").exit_code == 0
    until(lambda: rules(types) == [], what="no rule")


def commands(told: str) -> list[list[str]]:
    """The commands that an answer names, without `semel acl`."""
    lines = [line.partition(": semel acl ")[2] for line in told.splitlines() if ": semel acl " in line]
    return [shlex.split(line) for line in lines]


def checked(types: Types, *words: str) -> dict[str, Any]:
    (found,) = json.loads(types("check", *words, "--json").stdout)
    return dict(found)


QUESTION = ("alice", "write", "--topic", "payments")


def test_check_says_why_not_and_the_command_it_names_changes_that(types: Types) -> None:
    no = types("check", *QUESTION)
    assert no.exit_code == 1
    assert no.output.startswith("no: User:alice may not WRITE topic payments\n  no rule names this resource")
    assert "semel acl add User:alice --operation write --topic payments" in no.output
    for command in commands(no.output):
        assert types(*command).exit_code == 0
    until(lambda: checked(types, *QUESTION)["allowed"], what="it to be allowed")
    yes = types("check", *QUESTION)
    assert yes.exit_code == 0
    assert "allowed by the rule: allow User:alice to WRITE on topic payments" in yes.output
    for command in commands(yes.output):
        assert types(*command).exit_code == 0
    until(lambda: not checked(types, *QUESTION)["allowed"], what="it to be forbidden")
    denied = types("check", *QUESTION)
    assert "denied by the rule: deny User:alice to WRITE on topic payments" in denied.output
    assert [command[0] for command in commands(denied.output)] == ["remove"]
    for command in commands(denied.output):
        assert types(*command, "--yes").exit_code == 0
    until(lambda: checked(types, *QUESTION)["allowed"], what="it to be allowed again")


@pytest.mark.parametrize(
    ("operation", "resource", "said"),
    [
        ("alter_configs", ("--topic", "payments"), "ALTER_CONFIGS topic payments"),
        ("delete", ("--group", "billing"), "DELETE group billing"),
        ("two_phase_commit", ("--transactional-id", "till"), "TWO_PHASE_COMMIT transactional id till"),
        ("describe", ("--delegation-token", "abc"), "DESCRIBE delegation token abc"),
        ("create_tokens", ("--user-principal", "bob"), "CREATE_TOKENS user User:bob"),
        ("idempotent_write", ("--cluster",), "IDEMPOTENT_WRITE the cluster"),
    ],
)
def test_check_answers_for_every_resource_type(
    types: Types, operation: str, resource: tuple[str, ...], said: str
) -> None:
    told = types("check", "carol", operation, *resource)
    assert told.exit_code == 1, told.output
    assert f"no: User:carol may not {said}" in told.output
    added = types("add", "carol", "--operation", operation, *resource)
    assert added.exit_code == 0, added.output
    allowed = f"yes: User:carol may {said}"
    until(lambda: allowed in types("check", "carol", operation, *resource).output, what="the rule to decide")


def test_check_takes_a_producer_or_a_consumer_as_one_question(types: Types) -> None:
    asked = ("alice", "--consumer", "--topic", "payments", "--group", "billing")
    assert types("check", *asked).output.count("no: ") == 3
    types("add", *asked)
    until(lambda: types("check", *asked).exit_code == 0, what="a consumer to be allowed")


def test_check_says_that_another_host_makes_a_difference(types: Types) -> None:
    types("add", "alice", "--operation", "write", "--topic", "payments", "--host", "10.0.0.7")
    until(lambda: len(rules(types)) == 1, what="one rule")
    no = types("check", *QUESTION)
    assert no.exit_code == 1
    assert "from 10.0.0.7 it is allowed: ask with --host" in no.output
    assert types("check", *QUESTION, "--host", "10.0.0.7").exit_code == 0


def test_super_users_are_known_or_it_is_said_that_they_are_not(types: Types, file: str) -> None:
    if "SCRAM" in Path(file).read_text():
        told = types("check", "root", "write", "--topic", "payments")
        assert told.exit_code == 0
        assert "User:root is one of super.users" in told.output
        assert "no rule can change it" in told.output
        assert "does not tell" not in types("check", *QUESTION).output
    else:
        told = types("check", ADMIN, "write", "--topic", "payments")
        assert told.exit_code == 1
        said = "this broker does not tell its super.users: if User:admin is one of them, the answer is yes"
        assert said in told.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("add", "alice"), "Give --operation, --producer or --consumer"),
        (("add", "alice", "--operation", "read"), "which resource is it about? Give one or more of --topic"),
        (("add", "alice", "--operation", "fly", "--topic", "t"), "--operation is 'fly': it must be one of all, read"),
        (("add", "alice", "--operation", "write", "--group", "g"), "write is no operation on a group"),
        (("add", "alice", "--producer", "--group", "g"), "--producer needs --topic or --transactional-id"),
        (("add", "alice", "--consumer", "--topic", "t"), "--consumer needs --topic and --group"),
        (("add", "alice", "--producer", "--topic", "t", "--group", "g"), "nothing is said about group g"),
        (("add", "alice", "--producer", "--topic", "t", "--deny"), "--producer and --consumer are for"),
        (("add", ":alice", "--operation", "read", "--topic", "t"), "is not a principal"),
        (("add", "", "--operation", "read", "--topic", "t"), "is not a principal"),
        (("add", "alice", "--operation", "read", "--topic", ""), "--topic: the name is empty"),
        (("add", "alice", "--operation", "read", "--topic", "t", "--host", ""), "--host: the address is empty"),
        (("add", "alice", "--operation", "read", "--topic", "t", "--host", "example.com"), "is not an address"),
        (("add", "alice", "--operation", "read", "--topic", "t", "--host", "10.0.0.0/8"), "is not an address"),
        (("add", "user:alice", "--operation", "read", "--topic", "t"), "the type is written User, as in User:alice"),
        (("add", "alice", "--operation", "read", "--topic", "*", "--prefixed"), "* is all names already"),
        (("add", "alice", "--operation", "read", "--topic", "a/b"), "'a/b' is no name of a topic"),
        (("check", "alice", "read", "--topic", "t", "--host", "example.com"), "is not an address"),
        (("remove",), "which rules?"),
        (("remove", "alice", "--allow", "--deny"), "give one of --allow and --deny"),
        (("check", "alice", "read"), "which resource"),
        (("check", "alice", "--topic", "t"), "Give OPERATION, --producer"),
        (("check", "alice", "fly", "--topic", "t"), "operation is 'fly'"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_before_a_broker_is_asked(words: tuple[str, ...], why: str) -> None:
    told = typed(*words, "--bootstrap", "127.0.0.1:1")
    assert told.exit_code == 2, told.output
    assert why in told.output


def test_a_broker_without_rules_says_which_setting_turns_them_on(semel_broker: Broker) -> None:
    at = ("--bootstrap", semel_broker.bootstrap_servers)
    for words in (
        ("list",),
        ("add", "alice", "--operation", "read", "--topic", "t"),
        ("remove", "alice", "--yes"),
        ("check", "alice", "read", "--topic", "t"),
    ):
        told = typed(*words, *at)
        assert told.exit_code == 1
        assert "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer" in told.output
        assert told.output.count("\n") == 1


def test_who_may_not_see_rules_is_told_what_to_do(tmp_path: Path) -> None:
    with Broker(security=Security(["root", "alice"], super_users=["root"])) as broker:
        file = properties(tmp_path / "alice", broker.client_settings("alice"))
        told = typed("list", "--command-config", file)
    assert told.exit_code == 1
    assert "CLUSTER_AUTHORIZATION_FAILED" in told.output
    assert "semel acl check" in told.output


NAMES = st.sampled_from(["payments", "pay", "p", "ledger", "*"])
BINDINGS = st.builds(
    AclBinding,
    st.sampled_from(["User:alice", "User:*", "User:bob"]),
    st.sampled_from(["read", "write", "describe", "all", "delete"]),
    st.just("topic"),
    NAMES,
    st.sampled_from(["literal", "prefixed"]),
    st.sampled_from(["*", "10.0.0.7"]),
    st.sampled_from(["allow", "deny"]),
)


@given(
    acls=st.lists(BINDINGS, max_size=8),
    operation=st.sampled_from([Operation.READ, Operation.DESCRIBE, Operation.WRITE]),
    host=st.sampled_from([None, "10.0.0.7", "10.0.0.8"]),
    everyone=st.booleans(),
)
def test_whatever_the_rules_are_the_commands_turn_the_answer_round(
    acls: list[AclBinding], operation: Operation, host: str | None, everyone: bool
) -> None:
    settings = AuthorizerSettings(frozenset(), everyone)
    wanted = Wanted(operation, Resource(ResourceType.TOPIC, "payments"))
    first = answer("User:alice", wanted, host, acls, settings)
    after = set(acls)
    for verb, *words in map(shlex.split, (line.removeprefix("semel acl ") for line in first["to_change_it"])):
        given = dict(zip(words[1::2], words[2::2], strict=False))
        rule = AclBinding(
            words[0], given["--operation"], "topic", given["--topic"],
            "prefixed" if "--prefixed" in words else "literal",
            words[words.index("--host") + 1] if "--host" in words else "*",
            "deny" if "--deny" in words else "allow",
        )  # fmt: skip
        if verb == "add":
            after.add(rule)
        else:
            assert rule in after
            after.remove(rule)
    assert answer("User:alice", wanted, host, after, settings)["allowed"] is not first["allowed"]

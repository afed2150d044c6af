"""Users, quotas and tokens in ZooKeeper, beside what Apache Kafka 3.9 writes there."""

from __future__ import annotations

import json

import pytest

from semel.machines.security.delegation_tokens import DelegationToken
from semel.machines.security.principals import Principal
from semel.machines.security.scram import ScramKeys
from semel.machines.znodes import entities, tokens
from semel.machines.znodes.operations import ALL, READ, Acl, owned
from semel.machines.znodes.values import UnreadableZnode


@pytest.mark.parametrize("name", ["alice", "CN=alice,O=Semel", "a b", "*", "~", "ü/é", "<default>", "%41", "a.b-c_d"])
def test_every_name_comes_back(name: str) -> None:
    encoded = entities.encode_name(name)
    assert "/" not in encoded and entities.decode_name(encoded) == name


def test_names_are_encoded_as_kafkas_sanitizer_does() -> None:
    assert entities.encode_name("CN=a b,O=*") == "CN%3Da%20b%2CO%3D%2A"
    assert entities.encode_name("<default>") == "%3Cdefault%3E"
    assert entities.decode_name(entities.encode_name(None)) is None


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_no_node_can_have_is_refused(name: str) -> None:
    with pytest.raises(entities.NoSuchName):
        entities.encode_name(name)


def test_a_credential_of_kafka_is_read_and_ours_says_the_same() -> None:
    text = "salt=c2FsdA==,stored_key=c3RvcmVk,server_key=c2VydmVy,iterations=8192"
    keys = entities.decode_scram(text)
    assert keys == ScramKeys(8192, b"salt", b"stored", b"server")
    assert entities.encode_scram(keys) == text
    assert entities.credentials_in({"SCRAM-SHA-512": text, "producer_byte_rate": "5"}) == {2: keys}


@pytest.mark.parametrize("text", ["", "salt=c2FsdA==", "salt=!,stored_key=a,server_key=a,iterations=1", "x"])
def test_what_is_no_credential_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        entities.decode_scram(text)


def test_quotas_are_written_as_kafka_writes_them() -> None:
    assert entities.encode_quota(1024.0, whole=True) == "1024"
    assert entities.encode_quota(200, whole=False) == "200.0"
    assert entities.client_of_user("a b", None) == "users/a%20b/clients/<default>"


def test_a_token_comes_back_and_has_no_secret() -> None:
    token = DelegationToken(
        "id-1", Principal("User", "alice"), Principal("User", "bob"), (Principal("User", "CN=c,O=d"),), 1, 2, 3
    )
    data = tokens.encode_token(token)
    assert tokens.decode_token(data, "p") == token
    assert json.loads(data) == {
        "version": 3, "owner": "User%3Aalice", "tokenRequester": "User%3Abob", "renewers": ["User%3ACN%3Dc%2CO%3Dd"],
        "issueTimestamp": 1, "maxTimestamp": 3, "expiryTimestamp": 2, "tokenId": "id-1",
    }


def test_a_token_of_an_older_kafka_was_asked_for_by_its_owner() -> None:
    data = (
        b'{"version":1,"owner":"User%3Aalice","renewers":[],"issueTimestamp":1,"maxTimestamp":3,"expiryTimestamp":2,'
        b'"tokenId":"t"}'
    )
    assert tokens.decode_token(data, "p").requester == Principal("User", "alice")
    with pytest.raises(UnreadableZnode, match="/delegation_token/tokens/t"):
        tokens.decode_token(b"{}", tokens.token_path("t"))


def test_nodes_with_secrets_are_for_their_owner_alone() -> None:
    creator, everybody = Acl(ALL, "auth", ""), Acl(READ, "world", "anyone")
    assert owned("/brokers/ids/1") == (creator, everybody)
    for path in ("/config/users/alice", "/config/users", "/delegation_token/tokens/x", "/semel/scram_secret"):
        assert owned(path) == (creator,)
    assert owned("/config/users-of-nobody") == (creator, everybody)

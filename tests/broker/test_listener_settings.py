"""Settings that one listener has for itself."""

from __future__ import annotations

import pytest

from semel.config import BROKER, ConfigError, listener_settings


def test_a_listeners_own_value_comes_before_the_plain_one() -> None:
    given = {"ssl.client.auth": "requested", "listener.name.mutual.ssl.client.auth": "required"}
    settings = BROKER.parse(given)
    assert listener_settings(settings, "MUTUAL")["ssl.client.auth"] == "required"
    assert listener_settings(settings, "SSL")["ssl.client.auth"] == "requested"
    assert listener_settings(settings, "MUTUAL").own("ssl.client.auth") == "required"
    assert listener_settings(settings, "SSL").own("ssl.client.auth") is None


def test_a_listeners_own_value_is_checked_like_the_plain_one() -> None:
    with pytest.raises(ConfigError, match=r"listener\.name\.ssl\.ssl\.client\.auth=perhaps: must be one of required"):
        BROKER.parse({"listener.name.ssl.ssl.client.auth": "perhaps"})


def test_a_listeners_secret_is_not_shown() -> None:
    settings = BROKER.parse({"listener.name.ssl.ssl.key.password": "open sesame"})
    assert "sesame" not in repr(settings) and "sesame" not in repr(listener_settings(settings, "SSL"))
    assert settings.passed_by == {}


def test_what_has_no_effect_for_a_listener_is_passed_by() -> None:
    assert list(BROKER.parse({"listener.name.ssl.num.network.threads": "3"}).passed_by) == [
        "listener.name.ssl.num.network.threads"
    ]


@pytest.mark.parametrize("prefix", ["", "listener.name.ssl."])
def test_a_misspelt_setting_of_tls_is_refused_and_not_passed_by(prefix: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{prefix}ssl.client.auth'"):
        BROKER.parse({f"{prefix}ssl.client.atuh": "required"})
    assert list(BROKER.parse({f"{prefix}ssl.provider": "SunJSSE"}).passed_by) == [f"{prefix}ssl.provider"]

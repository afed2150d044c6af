"""The listeners that ask who a client is: which mechanisms each one has, and its limits.

Guarantees:

- A listener with SASL has at least one mechanism, and each of its mechanisms has what it needs. Otherwise the broker
  does not start, and says which setting is missing.
- A mechanism that is not spoken here is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from semel.broker.listeners import Listener
from semel.broker.security.gate import Gate
from semel.config import ConfigError, ListenerSettings, listener_settings
from semel.machines.security.authentication import Authentication, Mechanism

if TYPE_CHECKING:
    from semel.broker.net.connection import ServerConnection
    from semel.broker.server import BrokerServer

#: The module that has each mechanism, here in `broker.security`, and the function in it that makes one.
#: It takes the broker and the `MechanismSettings`, and raises ConfigError where something is missing.
MECHANISMS = {
    "PLAIN": ("plain", "plain"),
    "SCRAM-SHA-256": ("scram", "scram"),
    "SCRAM-SHA-512": ("scram", "scram"),
    "OAUTHBEARER": ("oauthbearer", "oauthbearer"),
}


class MechanismSettings:
    """The settings of one mechanism on one listener.

    `listener.name.LISTENER.MECHANISM.NAME` comes before `listener.name.LISTENER.NAME`, and that before `NAME`.
    """

    def __init__(self, settings: ListenerSettings, mechanism: str) -> None:
        self._settings = settings
        self.mechanism = mechanism

    def __getitem__(self, name: str) -> Any:
        own = self._settings.own(f"{self.mechanism.lower()}.{name}")
        return self._settings[name] if own is None else own

    def name_of(self, name: str) -> str:
        """The longest name of a setting, for a message."""
        return f"listener.name.{self._settings.name.lower()}.{self.mechanism.lower()}.{name}"


class Door:
    """One listener with SASL."""

    def __init__(self, broker: BrokerServer, listener: Listener) -> None:
        self.broker = broker
        self.listener = listener
        settings = listener_settings(broker.settings, listener.name)
        self.max_frame_bytes: int = settings["sasl.server.max.receive.size"]
        self.delay_s: float = settings["connection.failed.authentication.delay.ms"] / 1000
        self.timeout_s: float = settings["semel.authentication.timeout.ms"] / 1000
        self.mechanisms: dict[str, Mechanism] = {}
        self._session_ms: dict[str, int] = {}
        enabled = settings["sasl.enabled.mechanisms"]
        if not enabled:
            raise ConfigError(
                f"sasl.enabled.mechanisms: listener {listener.name} is {listener.protocol}, and no mechanism is "
                f"enabled; set it to one or more of {', '.join(MECHANISMS)}"
            )
        for name in enabled:
            if name not in MECHANISMS:
                why = "GSSAPI (Kerberos) is not spoken here" if name == "GSSAPI" else f"there is no mechanism {name}"
                raise ConfigError(f"sasl.enabled.mechanisms: {why}; choose from {', '.join(MECHANISMS)}")
            module, function = MECHANISMS[name]
            make: Callable[[BrokerServer, MechanismSettings], Mechanism]
            make = getattr(import_module(f"semel.broker.security.{module}"), function)
            own = MechanismSettings(settings, name)
            self.mechanisms[name] = make(broker, own)
            self._session_ms[name] = own["connections.max.reauth.ms"]

    def start(self) -> None:
        """The broker listens: mechanisms may fetch what they need."""
        for mechanism in self.mechanisms.values():
            mechanism.start()

    def new_gate(self, connection: ServerConnection) -> Gate:
        """The gate for a new connection."""
        return Gate(self, Authentication(self.mechanisms, self._session_ms), connection)

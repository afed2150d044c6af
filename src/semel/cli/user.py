"""`semel user`: the users that authenticate with SCRAM, on a running broker or in the data directory of one that stands
still."""

from __future__ import annotations

import getpass
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from semel.broker.data_directory import DataDirectoryInUse
from semel.broker.stored_users import StoredUsers
from semel.cli.connecting import Brokers, admin_at, common_options, names_brokers
from semel.cli.output import errors_for_people, show
from semel.cli.properties_file import read_properties_file
from semel.client.admin.users import ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS
from semel.client.blocking.admin import Admin
from semel.config import BROKER, ConfigError
from semel.errors import Refused
from semel.machines.security.scram import MECHANISM_NUMBERS

MECHANISMS = tuple(MECHANISM_NUMBERS)
_GENERATED_BYTES = 24

Command = TypeVar("Command", bound=Callable[..., Any])

mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(MECHANISMS, case_sensitive=False),
    help="For this mechanism only; may be repeated.  [default: both]",
)
data_option = click.option(
    "--data",
    metavar="DIR",
    help="Do it in this data directory, of a broker that does not run. For its first user, or for a lost password.",
)
zookeeper_option = click.option(
    "--zookeeper",
    metavar="HOST:PORT",
    help="Do it in the ZooKeeper of a cluster, whether its brokers run or not. For the first user of a cluster.",
)
config_option = click.option(
    "--config",
    metavar="FILE",
    help="The properties of a broker of that cluster: how ZooKeeper is reached (zookeeper.*), and where.",
)


class Users(Protocol):
    """Where users are stored."""

    def describe(self) -> Mapping[str, Mapping[str, int]]:
        """Every user's mechanisms, and how many iterations each has."""

    def set_password(self, user: str, password: str, mechanisms: tuple[str, ...], iterations: int) -> None:
        """Let a user in with this password."""

    def delete(self, user: str, mechanisms: list[str]) -> None:
        """Remove a user's credentials."""


class UsersOfBrokers:
    """The users of a running cluster."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def describe(self) -> dict[str, dict[str, int]]:
        found = self._admin.describe_scram_credentials()
        return {name: {one.mechanism: one.iterations for one in rows} for name, rows in found.items()}

    def set_password(self, user: str, password: str, mechanisms: tuple[str, ...], iterations: int) -> None:
        # One request for each: a user that is in a request twice is refused, by Kafka too.
        for mechanism in mechanisms:
            self._admin.set_scram_credentials(user, password, mechanism, iterations=iterations)

    def delete(self, user: str, mechanisms: list[str]) -> None:
        for mechanism in mechanisms:
            self._admin.delete_scram_credentials(user, mechanism)


def _users_in_zookeeper(connect: str | None, config: str | None) -> Users:
    from semel.broker.replication.users_in_zookeeper import UsersInZooKeeper

    if names_brokers(click.get_current_context()):
        raise click.UsageError("--zookeeper and --config ask no broker: leave out --bootstrap and --command-config")
    given: dict[str, object] = {}
    if config is not None:
        try:
            given.update(read_properties_file(config, "--config"))
        except ValueError as error:
            raise click.ClickException(str(error)) from None
    if connect is not None:
        given["zookeeper.connect"] = connect
    settings = BROKER.parse(given)
    if not settings["zookeeper.connect"]:
        raise click.UsageError(f"{config} has no zookeeper.connect: its users are in its directory, see --data")
    return UsersInZooKeeper(settings)


@contextmanager
def users_at(
    brokers: Brokers,
    data: str | None,
    zookeeper: str | None = None,
    config: str | None = None,
    *,
    is_new: bool = False,
) -> Iterator[Users]:
    """The users of the brokers, of a data directory, or of a ZooKeeper; `is_new`: a missing directory is made."""
    if zookeeper is not None or config is not None:
        if data is not None:
            raise click.UsageError("--data is for a broker that is alone, --zookeeper for a cluster: give one of them")
        try:
            yield _users_in_zookeeper(zookeeper, config)
        except ConfigError as error:
            raise click.ClickException(str(error)) from None
        return
    if data is None:
        with errors_for_people(), admin_at(brokers) as admin:
            yield UsersOfBrokers(admin)
        return
    if names_brokers(click.get_current_context()):
        raise click.UsageError("--data is for a broker that does not run: leave out --bootstrap and --command-config")
    path = Path(data)
    if not data or not (is_new or path.is_dir()):
        raise click.ClickException(f"--data: there is no directory {data!r}")
    try:
        with StoredUsers(path) as stored:
            yield stored
    except DataDirectoryInUse:
        raise click.ClickException(f"{data} is in use by a running broker: ask that one, with --bootstrap") from None
    except ConfigError as error:
        raise click.ClickException(f"--data: {error}") from None
    except OSError as error:
        raise click.ClickException(f"--data: cannot use {data}: {error.strerror or error}") from None
    except Refused as error:
        raise click.ClickException(error.why) from None


@click.group()
def user() -> None:
    """Create, list and delete users (SCRAM)."""


@user.command()
@click.argument("name")
@click.option("--password-file", metavar="FILE", help="Read the password from a file; - is standard input.")
@click.option("--password-env", metavar="NAME", help="Take the password from this variable of the environment.")
@click.option("--generate", is_flag=True, help="Make up a password, and print it.")
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=ITERATIONS,
    show_default=True,
    help="How much work a guess costs.",
)
@mechanism_option
@data_option
@zookeeper_option
@config_option
@common_options
def create(
    name: str,
    password_file: str | None,
    password_env: str | None,
    generate: bool,
    iterations: int,
    mechanisms: tuple[str, ...],
    data: str | None,
    zookeeper: str | None,
    config: str | None,
    brokers: Brokers,
    as_json: bool,
) -> None:
    """Create a user, or give a user a new password.

    Without --password-file, --password-env and --generate the password is asked for. A broker whose listeners all ask
    for a password needs its first user before its first start: give its directory with --data, and for a cluster
    --zookeeper.
    """
    if generate + (password_file is not None) + (password_env is not None) > 1:
        raise click.UsageError("give one of --generate, --password-file and --password-env")
    if not name:
        raise click.UsageError("the name of the user is empty")
    if name != name.strip() or not name.isprintable():
        raise click.UsageError(
            f"{name!r}: a user's name with spaces around it, or with characters that cannot be seen, is sent by some "
            "clients and not by others; choose another"
        )
    with users_at(brokers, data, zookeeper, config, is_new=True) as users:
        password = secrets.token_urlsafe(_GENERATED_BYTES) if generate else _password(name, password_file, password_env)
        users.set_password(name, password, mechanisms or MECHANISMS, iterations)
    rows = [
        {"user": name, "mechanism": one, "iterations": iterations} | ({"password": password} if generate else {})
        for one in mechanisms or MECHANISMS
    ]
    columns = ("user", "mechanism", "iterations", "password") if generate else ("user", "mechanism", "iterations")
    show(rows, columns, as_json=as_json)


def _password(name: str, file: str | None, variable: str | None) -> str:
    if variable is not None:
        found = os.environ.get(variable)
        if not found:
            raise click.ClickException(f"--password-env: {variable} is not set, or empty")
        return found
    if file is None:
        return _asked_for(name)
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--password-file: cannot read {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise click.ClickException(f"--password-file: {file} is not text in UTF-8") from None
    # An editor ends the last line; no password does.
    password = text.removesuffix("\n").removesuffix("\r")
    if not password:
        raise click.ClickException(f"--password-file: {file} is empty")
    if "\n" in password:
        raise click.ClickException(f"--password-file: {file} has more than one line")
    return password


def _asked_for(name: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", getpass.GetPassWarning)  # it says that there is no terminal
            password: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.ClickException(
            "there is no terminal to ask for the password: give --password-file - to read it from standard input, or "
            "--password-env, or --generate"
        ) from None
    return password


@user.command("list")
@data_option
@zookeeper_option
@config_option
@common_options
def list_users(
    data: str | None, zookeeper: str | None, config: str | None, brokers: Brokers, as_json: bool
) -> None:
    """List users and their mechanisms."""
    with users_at(brokers, data, zookeeper, config) as users:
        found = users.describe()
    rows = [
        {"user": name, "mechanism": mechanism, "iterations": iterations}
        for name, credentials in sorted(found.items())
        for mechanism, iterations in credentials.items()
    ]
    show(rows, ("user", "mechanism", "iterations"), as_json=as_json)


@user.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask first.")
@mechanism_option
@data_option
@zookeeper_option
@config_option
@common_options
def delete(
    name: str,
    yes: bool,
    mechanisms: tuple[str, ...],
    data: str | None,
    zookeeper: str | None,
    config: str | None,
    brokers: Brokers,
    as_json: bool,
) -> None:
    """Delete a user's credentials. Connections that are open stay open until they end."""
    with users_at(brokers, data, zookeeper, config) as users:
        known = users.describe().get(name)
        if known is None:
            raise click.ClickException(f"there is no user {name}: semel user list")
        missing = [one for one in mechanisms if one not in known]
        if missing:
            raise click.ClickException(f"{name} has no credential for {', '.join(missing)}: semel user list")
        chosen = sorted(mechanisms or known)
        if not yes:
            click.confirm(f"Delete the credentials of {name} for {', '.join(chosen)}?", abort=True, err=True)
        users.delete(name, chosen)
    rows = [{"user": name, "mechanism": mechanism, "deleted": True} for mechanism in chosen]
    show(rows, ("user", "mechanism", "deleted"), as_json=as_json)

"""`semel broker start`: run a broker until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from semel.cli.properties_file import read_properties_file
from semel.config import BROKER, ConfigError, Values
from semel.errors import Refused

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA = "./semel-data"
_OPTIONS = ("--listen", "--data", "--config", "--set", "--log-level")


def start_without_click(arguments: Sequence[str]) -> None:
    """Start if the arguments are plain options with values. Otherwise return: click explains the mistake."""
    given: dict[str, str] = {}
    sets: list[str] = []
    words = iter(arguments)
    for word in words:
        option, sign, value = word.partition("=")
        if option not in _OPTIONS:
            return
        if not sign:
            try:
                value = next(words)
            except StopIteration:
                return
        if option == "--set":
            sets.append(value)
        else:
            given[option] = value
    run(given.get("--listen"), given.get("--data"), given.get("--config"), sets, given.get("--log-level", "warning"))


def gather_settings(listen: str | None, data: str | None, config_file: str | None, sets: Sequence[str]) -> Values:
    """Settings from the file, then `--set`, then `--listen` and `--data`. Later ones override earlier ones."""
    given: dict[str, object] = {}
    for option, value in (("--listen", listen), ("--data", data)):
        if value is not None and not value.strip():
            # A variable that is not set, perhaps: any other place than the one that was meant would be a surprise.
            raise ConfigError(f"{option} is empty: give it a value, or leave it out")
    if config_file is not None:
        try:
            given.update(read_properties_file(config_file, "--config"))
        except ValueError as error:
            raise ConfigError(str(error)) from None
    for pair in sets:
        name, sign, value = pair.partition("=")
        if not sign:
            # What follows the name may be a password.
            raise ConfigError(f"--set {re.split('[^a-zA-Z0-9._-]', pair)[0]}: expected name=value")
        name = name.strip()
        option, other = ("--listen", listen) if name == "listeners" else ("--data", data)
        if name in ("listeners", "log.dirs", "log.dir") and other is not None:
            raise ConfigError(f"{option} {other} and --set {name}={value.strip()} say the same thing: give one of them")
        given[name] = value.strip()
    if data is not None and len(str(given.get("log.dirs", "")).split(",")) > 1:
        # It would be opened without what lies in the others.
        raise ConfigError(f"--data {data}: {config_file} has several log.dirs; change them there")
    if listen is not None or "listeners" not in given:
        given["listeners"] = (f"PLAINTEXT://{listen or DEFAULT_LISTEN}",)
    older = given.pop("log.dir", None)  # Kafka's name for one directory, used if log.dirs is not set
    if older is not None:
        given.setdefault("log.dirs", older)
    if data is not None or "log.dirs" not in given:
        given["log.dirs"] = (data or DEFAULT_DATA,)
    return BROKER.parse(given)


def run(listen: str | None, data: str | None, config_file: str | None, sets: Sequence[str], log_level: str) -> NoReturn:
    """Run a broker in this process and exit with it."""
    began = time.monotonic()
    level = logging.getLevelName(log_level.upper())
    if not isinstance(level, int):
        _fail(f"--log-level {log_level}: one of debug, info, warning, error")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        settings = gather_settings(listen, data, config_file, sets)
    except ConfigError as error:
        _fail(str(error))
    from semel.broker.data_directory import DataDirectoryInUse
    from semel.broker.embedded import new_event_loop
    from semel.broker.listeners import address_text, advertised_note
    from semel.broker.server import BrokerServer
    from semel.records._select import COMPILED

    if not COMPILED:
        logging.getLogger("semel").warning(
            "the record loops run in Python, slower, otherwise the same: install a C compiler, then Semel again"
        )
    _allow_many_files()
    broker = BrokerServer(settings)

    async def serve() -> None:
        await broker.start()
        tidy_memory()
        take_turns_often()
        loop = asyncio.get_running_loop()
        for number in _stopping_signals():
            loop.add_signal_handler(number, broker.spawn_stop)
        with suppress(OSError):  # where the output goes to may be full: that is no reason not to serve
            print(
                f"semel broker ready on {address_text(*broker.listening.endpoint)}, data in {settings['log.dirs'][0]} "
                f"({time.monotonic() - began:.2f} s)",
                flush=True,
            )
            if (note := advertised_note(settings, broker.listening.endpoint)) is not None:
                print(note, flush=True)
            _tell_about_security(broker)
        await broker.stopped.wait()

    loop = new_event_loop()
    try:
        loop.run_until_complete(serve())
    except (ConfigError, DataDirectoryInUse) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"cannot use {error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except Refused as refusal:
        _fail(str(refusal), code=1)
    except KeyboardInterrupt:  # while it was starting: the next start recovers what this one did not
        print("semel broker: stopped before it was ready", file=sys.stderr)
        os._exit(130)
    if sys.stdout is not None:  # it is, where the caller has closed it
        with suppress(OSError):
            sys.stdout.flush()
    # The logs are closed and the clean-shutdown file is written: skip the interpreter's slow exit.
    os._exit(0 if broker.fatal_error is None else 1)


def _stopping_signals() -> list[signal.Signals]:
    """What stops a broker cleanly. A terminal that closes sends SIGHUP, unless `nohup` keeps it from the broker."""
    closing = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
    return [signal.SIGTERM, signal.SIGINT, *closing]


def _tell_about_security(broker: BrokerServer) -> None:
    """Who can come in where, if not everybody everywhere, and what leaves a door open."""
    from semel.broker.listeners import PLAINTEXT
    from semel.broker.security_notes import security_summary, security_warnings

    if broker.access is not None or any(one.protocol != PLAINTEXT for one in broker.listening.listeners):
        print(security_summary(broker), flush=True)
    for warning in security_warnings(broker):
        print(f"warning: {warning}", file=sys.stderr, flush=True)


def take_turns_often() -> None:
    """Let the loop have the interpreter back soon when another thread works.

    Whenever the loop waits for its sockets, a busy thread gets the interpreter and keeps it for this long; by default
    5 ms, many times in one turn of the loop.
    """
    sys.setswitchinterval(0.0005)


def tidy_memory() -> None:
    """Run the cyclic garbage collector less often, and never again over the objects that exist now.

    A collection stops all threads: for 50 ms per million objects on a quiet machine, and for longer on a busy one for
    the 200,000 objects of one large request. So young objects are collected some thousands at a time, and full
    collections are rare: the broker has few reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 1, 5_000)


def _allow_many_files() -> None:
    """Raise the limit of open files as far as the system allows: every partition in use keeps one open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _fail(why: str, code: int = 2) -> NoReturn:
    print(f"semel broker: {why}", file=sys.stderr)
    sys.exit(code)


def __getattr__(name: str) -> Any:
    """Create the click command when click asks for it."""
    if name == "broker":
        return _command()
    raise AttributeError(name)


def _command() -> Any:
    import click

    @click.group()
    def broker() -> None:
        """Run a broker."""

    @broker.command()
    @click.option("--listen", metavar="HOST:PORT", help=f"Where to listen; port 0 is any free port. [{DEFAULT_LISTEN}]")
    @click.option("--data", metavar="DIR", help=f"Where the data lives. [{DEFAULT_DATA}]")
    @click.option("--config", "config_file", metavar="FILE", help="A properties file with Kafka's names.")
    @click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="One setting; may be repeated.")
    @click.option("--log-level", default="warning", show_default=True, help="debug, info, warning or error.")
    def start(listen: str, data: str, config_file: str, sets: tuple[str, ...], log_level: str) -> None:
        """Start a broker. It prints one line when it is ready and stops cleanly on SIGTERM or Ctrl-C.

        So it does when its terminal closes; `nohup` keeps it running.
        """
        run(listen, data, config_file, sets, log_level)

    return broker

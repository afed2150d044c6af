"""The simulated world itself: virtual time, a trace that repeats, a network and a disk that break as told."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from semel.simulation.disk import ProcessDied
from semel.simulation.event_loop import BusyLoop, NothingHappens
from semel.simulation.faults import FAULTS, Strike
from semel.simulation.network import Network
from semel.simulation.play import Play
from semel.simulation.runs import draw_plan, run
from semel.simulation.world import BrokerNode, Clients, World


def test_time_jumps_to_the_next_timer_and_costs_nothing() -> None:
    world = World(1)

    async def story() -> float:
        began = world.loop.time()
        await asyncio.sleep(86_400)
        return world.loop.time() - began

    assert world.run(story()) == 86_400


def test_a_world_in_which_nothing_can_happen_says_so() -> None:
    world = World(1)
    with pytest.raises(NothingHappens):
        world.run(asyncio.Event().wait())


def test_a_program_that_never_lets_time_pass_is_stopped() -> None:
    world = World(1)

    async def story() -> None:
        while True:  # noqa: ASYNC110 - the mistake that is looked for
            await asyncio.sleep(0)

    with pytest.raises(BusyLoop):
        world.run(story())


def test_a_killed_process_does_nothing_more_not_even_in_its_finally_blocks() -> None:
    world = World(1)
    process = world.process("machine")
    done = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
            done.append("slept")
        finally:
            process.files.write_into("/file", b"too late", 0)

    async def story() -> None:
        process.spawn(work())
        await asyncio.sleep(1)
        process.die()
        await asyncio.sleep(60)

    world.run(story())
    assert done == []
    assert list(process.machine.disk.files()) == []


def test_a_paused_process_catches_up_when_it_goes_on() -> None:
    world = World(1)
    process = world.process("machine")
    times: list[float] = []

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            times.append(world.loop.time() - 1000)

    async def story() -> None:
        process.spawn(work())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10)
        process.go_on()
        await asyncio.sleep(5)

    world.run(story())
    assert times == [1, 11.5, 12.5]


# The disk


def write(world: World, data: bytes, *, sync: bool, sync_directory: bool) -> None:
    files = world.process("machine").files
    files.make_directory("/data")
    files.sync_directory("/")
    descriptor = files.open("/data/file", create=True)
    files.write_at(descriptor, data, 0)
    if sync:
        files.sync(descriptor)
    if sync_directory:
        files.sync_directory("/data")


def after_power_loss(*, sync: bool, sync_directory: bool) -> set[bytes | None]:
    found: set[bytes | None] = set()
    for seed in range(60):
        world = World(seed)
        write(world, b"0123456789", sync=sync, sync_directory=sync_directory)
        world.machine("machine").lose_power()
        left = {path: bytes(file.data) for path, file in world.machine("machine").disk.files()}
        found.add(left.get("/data/file"))
        world.loop.close()
    return found


def test_what_was_synced_is_there_after_a_power_loss() -> None:
    assert after_power_loss(sync=True, sync_directory=True) == {b"0123456789"}


def test_a_name_that_was_not_synced_may_be_gone() -> None:
    assert after_power_loss(sync=True, sync_directory=False) == {b"0123456789", None}


def test_bytes_that_were_not_synced_may_be_torn() -> None:
    found = after_power_loss(sync=False, sync_directory=True)
    assert b"" in found and b"0123456789" in found
    assert len(found) > 5


def test_an_fsync_that_failed_makes_no_later_one_true() -> None:
    lost = 0
    for seed in range(40):
        world = World(seed)
        files = world.process("machine").files
        descriptor = files.open("/file", create=True)
        files.sync_directory("/")
        files.write_at(descriptor, b"0123456789", 0)

        def fails(call: str, path: str) -> None:
            if call == "sync":
                raise OSError(errno.EIO, "input/output error")

        world.machine("machine").disk.obstacle = fails
        with pytest.raises(OSError, match="input/output"):
            files.sync(descriptor)
        world.machine("machine").disk.obstacle = None
        files.sync(descriptor)
        world.machine("machine").lose_power()
        lost += bytes(next(file.data for _, file in world.machine("machine").disk.files())) != b"0123456789"
        world.loop.close()
    assert lost > 5


def test_one_process_at_a_time_has_a_lock_and_its_death_frees_it() -> None:
    world = World(1)
    one, two = world.process("machine", "one"), world.process("machine", "two")
    one.files.lock("/lock")
    with pytest.raises(BlockingIOError):
        two.files.lock("/lock")
    one.die()
    two.files.lock("/lock")
    with pytest.raises(ProcessDied):
        one.files.exists("/lock")
    world.loop.close()


# The network


Story = Callable[[World, BrokerNode, Clients], Awaitable[object]]


def play(story: Story, seed: int = 1) -> object:
    """A broker and whatever the story does with it."""
    world = World(seed)

    async def whole() -> object:
        broker = BrokerNode(world)
        await broker.start()
        result = await story(world, broker, Clients(broker.address))
        await broker.stop()
        return result

    result = world.run(whole())
    assert world.violations == []
    return result


def test_an_answer_that_is_lost_leaves_the_record_written_once() -> None:
    async def story(world: World, broker: BrokerNode, clients: Clients) -> object:
        async def send() -> int:
            async with clients.producer(linger_ms=0) as producer:
                await (await producer.send("t", b"first", partition=0))
                for connection in world.network.connections.values():
                    connection.loses_answer = True
                await (await producer.send("t", b"second", partition=0))
                return (await (await producer.send("t", b"third", partition=0))).offset

        return await world.on(world.process("client"), send())

    assert play(story) == 2


@pytest.mark.parametrize("ways", [("there",), ("back",), ("there", "back")])
def test_what_is_sent_into_a_cut_arrives_when_it_heals(ways: tuple[str, ...]) -> None:
    async def story(world: World, broker: BrokerNode, clients: Clients) -> object:
        def change(what: Callable[[str, str], None]) -> None:
            if "there" in ways:
                what("client", "broker-1")
            if "back" in ways:
                what("broker-1", "client")

        async def send() -> float:
            async with clients.producer(linger_ms=0) as producer:
                await (await producer.send("t", b"first", partition=0))
                change(world.network.cut)
                began = world.loop.time()
                delivery = await producer.send("t", b"second", partition=0)
                world.loop.call_later(8, change, world.network.heal)
                assert (await delivery).offset == 1
                return world.loop.time() - began

        return await world.on(world.process("client"), send())

    took_s = play(story)
    assert isinstance(took_s, float)
    assert 8 < took_s < 9


def test_a_machine_without_power_is_silent_and_says_no_when_it_is_back() -> None:
    async def story(world: World, broker: BrokerNode, clients: Clients) -> object:
        async def send() -> None:
            async with clients.producer(linger_ms=0, acks="all") as producer:
                await (await producer.send("t", b"first", partition=0))
                broker.lose_power()
                delivery = await producer.send("t", b"second", partition=0)
                await asyncio.sleep(3)
                assert not delivery.done()
                broker.machine.boot()
                await broker.start()
                await delivery

        broker.settings["semel.durability"] = "fsync"
        await broker.stop()
        await broker.start()
        await world.on(world.process("client"), send())

    play(story)


# Runs


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_played_again_does_the_same_at_the_same_times(seed: int) -> None:
    plan = draw_plan(seed, duration_s=8)
    first, second = run(plan), run(plan)
    assert first.trace_hash == second.trace_hash
    assert first.violations == []


def test_a_fault_that_does_not_end_is_a_violation_and_no_endless_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(play: Play, chance: random.Random) -> None:
        await asyncio.Event().wait()

    monkeypatch.setitem(FAULTS, "cut", replace(FAULTS["cut"], run=never))
    plan = draw_plan(1, workloads=("idempotent",), duration_s=1)
    plan.strikes = [Strike(0.5, "cut", 7)]
    (told,) = run(plan).violations
    assert "liveness: the fault 0.500:cut:7 did not come to an end" in told


def test_another_seed_does_something_else() -> None:
    assert run(draw_plan(1, duration_s=3)).trace_hash != run(draw_plan(2, duration_s=3)).trace_hash


def test_a_strike_is_written_and_read() -> None:
    strike = Strike(1.5, "I/O error once", 77)
    assert Strike.parse(str(strike)) == strike


def test_the_network_has_no_connection_left_when_its_ends_are_gone() -> None:
    async def story(world: World, broker: BrokerNode, clients: Clients) -> Network:
        async def send() -> None:
            async with clients.producer() as producer:
                await (await producer.send("t", b"value"))

        process = world.process("client")
        await world.on(process, send())
        process.die()
        await asyncio.sleep(5)
        return world.network

    network = play(story)
    assert isinstance(network, Network)
    assert network.connections == {}

"""Every seed that ever failed, and what it found. Each is played again in `make test`.

The plan is written out, so that a later change of what a seed draws does not change it.
"""

from __future__ import annotations

from semel.simulation.faults import Strike
from semel.simulation.play import Plan

REGRESSIONS: dict[str, Plan] = {
    "a power failure took the whole data directory, whose own name was never fsynced": Plan(
        3,
        ("idempotent",),
        20.0,
        "fsync",
        [Strike(8.5, "client killed", 1), Strike(12.8, "power lost", 77), Strike(14.0, "power lost", 78)],
    ),
    "what a failed fsync was for was shown after a restart, and gone after a power failure": Plan(
        60,
        ("idempotent",),
        10.0,
        "fsync",
        [Strike(1.296, "I/O error once", 2642425295), Strike(3.679, "power lost", 725102486)],
    ),
    "after its clock was set back and right again the broker slept an hour, and no transaction timed out": Plan(
        200241,
        ("reading-cooperative", "timeouts"),
        20.0,
        "os",
        [Strike(15.714, "broker paused", 3006908257), Strike(18.395, "clock jumps", 2644078175)],
    ),
    "a producer whose clock was set back by an hour while it waited to send again waited for that hour": Plan(
        5068,
        ("retention", "zombies"),
        20.0,
        "os",
        [Strike(1.730, "broker killed", 4205470526), Strike(2.254, "clock jumps", 2022747352)],
    ),
    "a partition that a failing disk kept from opening was forgotten, the stop was clean, and data was lost": Plan(
        5460,
        ("hostile", "reading-consumer", "two-callers"),
        20.0,
        "fsync",
        [
            Strike(5.850, "I/O error for ever", 2059529846),
            Strike(6.084, "broker killed", 725284910),
            Strike(16.192, "power lost", 577827825),
        ],
    ),
    # The same where only that partition's files fail: with all of them a start fsyncs the names first, and fails.
    "a partition that its own failing files kept from opening was forgotten, and the stop was clean": Plan(
        5460,
        ("hostile", "reading-consumer", "two-callers"),
        20.0,
        "fsync",
        [
            Strike(5.850, "I/O error in one partition", 4),
            Strike(7.284, "broker killed", 725284910),
            Strike(16.192, "power lost", 577827825),
        ],
    ),
    "a power failure undid one of two renames of retention, and the hole behind it kept the partition offline": Plan(
        5584,
        ("reading-eager", "retention", "reused-sequences"),
        20.0,
        "fsync",
        [
            Strike(1.615, "I/O error for ever", 3361409386),
            Strike(3.800, "pieces", 519002260),
            Strike(6.433, "I/O error for ever", 3147940826),
            Strike(7.262, "power lost after a crash", 1949490572),
        ],
    ),
    "a follower that was connecting while its leader was elected anew asked under the old epoch for ever": Plan(
        1,
        ("idempotent",),
        10.0,
        "os",
        [
            Strike(0.060, "brokers cut off from each other", 3977354504),
            Strike(0.348, "brokers cut off from each other", 4012165672),
            Strike(2.166, "brokers cut off from each other", 1962206349),
            Strike(4.948, "broker killed", 411783308),
            Strike(6.157, "power lost", 780949142),
            Strike(6.595, "brokers cut off from each other", 306890165),
            Strike(6.878, "brokers cut off from each other", 434219337),
            Strike(7.057, "brokers cut off from each other", 1105862769),
            Strike(7.068, "brokers cut off from each other", 847253970),
            Strike(7.329, "power lost", 2539209277),
            Strike(7.642, "brokers cut off from each other", 2154114442),
            Strike(7.647, "brokers cut off from each other", 4222638763),
            Strike(7.865, "broker killed", 4187315645),
            Strike(8.178, "brokers cut off from each other", 132723962),
            Strike(9.084, "broker killed", 4058258981),
        ],
        brokers=3,
    ),
    "a machine that lost its power soon after its start did not know it, and stayed in sync without its data": Plan(
        1,
        ("idempotent",),
        6.0,
        "os",
        [
            Strike(0.06, "power lost", 3977354504),
            Strike(0.348, "power lost", 4012165672),
            Strike(2.166, "power lost", 1962206349),
            Strike(4.948, "power lost", 411783308),
        ],
        brokers=3,
    ),
    "a power loss took the file that names the topic, and a deleted topic's records were taken for the next": Plan(
        951354028,
        ("recreated",),
        6.0,
        "fsync",
        [
            Strike(1.520, "broker killed", 3043110285),
            Strike(1.888, "last in sync loses its power", 1339353666),
            Strike(3.081, "last in sync loses its power", 1475140942),
            Strike(4.041, "broker killed", 2353561386),
        ],
        brokers=3,
    ),
    "a broker was killed while it made a directory, and had it for ever after the topic was deleted meanwhile": Plan(
        1000261, ("recreated",), 8.0, "os", [Strike(5.694, "killed while writing", 3219636728)], brokers=3
    ),
    "an I/O error when a broker began to lead left a batch whose leader epoch no checkpoint knew": Plan(
        2000090,
        ("pipeline", "timeouts", "transfers-v1"),
        10.0,
        "os",
        [
            Strike(1.005, "leader killed", 3732405905), Strike(3.221, "leader killed", 1978807507),
            Strike(4.067, "leader killed", 1696618807), Strike(6.839, "I/O error once", 292472850),
            Strike(7.063, "leader killed", 3868258843),
        ],
        brokers=3,
    ),
    "a checkpoint of leader epochs that a power loss tore stayed so while nothing was written": Plan(
        2000192,
        ("reading-eager", "reassignments", "zombies"),
        10.0,
        "fsync",
        [
            Strike(1.363, "index goes bad", 1469848947), Strike(2.860, "power lost", 9216653),
            Strike(4.227, "power lost", 1903272971), Strike(4.793, "repeated requests", 148735320),
            Strike(5.185, "power lost", 2481262274), Strike(5.809, "client vanished", 2288619352),
            Strike(9.357, "slow network", 2592403724),
        ],
        brokers=3,
    ),
    "a start failed after it set a replica that had moved aside, and the replica could not come back": Plan(
        201911,
        ("elections", "reassignments"),
        10.0,
        "os",
        [
            Strike(0.469, "I/O error for ever", 2009546732), Strike(0.511, "I/O error for ever", 677702972),
            Strike(5.390, "I/O error for ever", 63001251), Strike(7.091, "I/O error for ever", 2866340273),
        ],
        brokers=3,
    ),
    "a classic member asked for its next heartbeat again and again within a millisecond": Plan(
        1, ("copying-eager",), 8.0, "os"
    ),
    "a list of aborts that nobody had read between two clean stops went bad after the second, and was believed": Plan(
        619,
        ("expiry",),
        20.0,
        "fsync",
        [Strike(7.735, "index goes bad", 1874604060), Strike(10.103, "index goes bad", 3115741226)],
    ),
    "a partition's directory that a killed broker had made was used by the next, and gone after a power failure": Plan(
        102039,
        ("secured", "timeouts", "two-phase"),
        20.0,
        "fsync",
        [Strike(1.633, "power lost after a crash", 3772525640)],
    ),
    # Not the broker's fault: a bit of a topic id went bad after a clean stop, whose checksum the next start had taken
    # when it was killed. The partition is offline then, as it must be; nobody had restored the file.
    "a topic id went bad between a clean stop and a crash": Plan(
        599,
        ("reading-cooperative", "timeouts"),
        20.0,
        "os",
        [
            Strike(17.543, "broker killed", 985765000), Strike(18.050, "index goes bad", 1088786959),
            Strike(18.954, "broker killed", 1675371449),
        ],
    ),
    "a member that was removed while it revoked partitions joined with partitions to revoke, and failed for good": Plan(
        20419, ("wandering",), 20.0, "os", []
    ),
    # Not the broker's fault: nobody can tell a bit that went bad in the last whole batch from a write that was not
    # finished. The fault had taken the beginning of another batch behind it for one.
    "a log's only batch went bad after a crash, behind it the beginning of one that a failing disk did not take": Plan(
        101481,
        ("copying-cooperative", "reading-eager"),
        20.0,
        "fsync",
        [Strike(0.227, "I/O error for ever", 576375906), Strike(2.615, "log goes bad", 301917751)],
    ),
    # Not the broker's fault: its power failed for longer than producers are remembered, between the markers of a
    # transaction and the coordinator's note of them. The judge took the marker that came again for a second end.
    "a marker came again after the partition had forgotten its producer": Plan(
        280,
        ("expiry", "reading-eager"),
        20.0,
        "fsync",
        [
            Strike(1.698, "power lost", 3233254470), Strike(3.812, "power lost", 2949080907),
            Strike(3.942, "power lost", 3784135986), Strike(11.007, "power lost", 2248878791),
            Strike(11.854, "power lost", 3756645251), Strike(12.393, "power lost", 4003868249),
            Strike(12.591, "power lost", 1514976109), Strike(13.259, "power lost", 3049596543),
            Strike(15.933, "power lost", 2623618992), Strike(18.562, "power lost", 3248469634),
        ],
    ),
    "a list of aborts of a compacted segment had no checksum after a stop, went bad, and nobody could read": Plan(
        21278, ("compaction",), 20.0, "os", [Strike(5.576, "index goes bad", 170875052)]
    ),
    "a time index went bad after a crash, and retention took an old segment for one of the future": Plan(
        25481, ("retention", "secured"), 20.0, "os", [Strike(14.272, "index goes bad", 3115765765)]
    ),
    # Not the broker's fault.
    "a fault looked at the topics of a broker that had only begun to start": Plan(
        40194,
        ("idempotent", "reading-cooperative"),
        10.0,
        "fsync",
        [
            Strike(2.473, "leader dies while a follower catches up", 2275463327),
            Strike(2.525, "leader dies while a follower catches up", 1523102327),
            Strike(3.783, "leader dies while a follower catches up", 527548873),
            Strike(6.814, "leader dies while a follower catches up", 1328572300),
            Strike(7.895, "leader dies while a follower catches up", 3800002858),
            Strike(9.076, "leader dies while a follower catches up", 2346158039),
        ],
        brokers=3,
    ),
    # Not the broker's fault: as in Kafka, a coordinator believes the start that an earlier one has written. The clocks
    # of all brokers are as fast as the fastest now when everything heals.
    "a transaction of a coordinator whose clock was an hour fast was another one's when everything had healed": Plan(
        42785,
        ("copying-cooperative", "timeouts", "two-phase"),
        10.0,
        "fsync",
        [
            Strike(0.790, "last in sync loses its power", 409619868), Strike(1.030, "clock jumps", 3913938613),
            Strike(2.623, "last in sync loses its power", 1824519684), Strike(3.007, "index goes bad", 648817538),
            Strike(3.154, "index goes bad", 1750037007), Strike(6.520, "last in sync loses its power", 2269834734),
            Strike(8.668, "clock jumps", 321652805), Strike(9.993, "pieces", 734738522),
        ],
        brokers=3,
    ),
    # Not the broker's fault: asyncio tells a protocol of its connection, or raises.
    "a connection that was reset while it was made was neither made nor lost, and was used for ever": Plan(
        40467,
        ("two-phase",),
        10.0,
        "os",
        [
            Strike(0.004, "reset", 1708868431), Strike(0.830, "reset", 315784023), Strike(2.550, "reset", 3852516142),
            Strike(4.706, "reset", 1525194470), Strike(8.515, "reset", 515752316),
        ],
        brokers=3,
    ),
    # Not the broker's fault: each replica forgets by its own clock, as in Kafka. The judge compared its snapshot with
    # the log.
    "a follower forgot a producer a moment before its next batch, and with it the epoch of its coordinator": Plan(
        41807,
        ("expiry",),
        10.0,
        "fsync",
        [
            Strike(4.504, "I/O error for ever", 3856146614), Strike(5.343, "I/O error for ever", 2726173455),
            Strike(6.451, "I/O error for ever", 1214530765), Strike(7.260, "rolling restart", 3162059210),
            Strike(7.360, "rolling restart", 1443963708),
        ],
        brokers=3,
    ),
    # Not the broker's fault: as in Kafka, the session of a dead member begins anew with each coordinator, and a new one
    # does not know a generation that nobody has synced. The members went before the group had partitions for them.
    "the members of a group left it before they had their partitions, and nobody read the last records": Plan(
        202375,
        ("compaction", "copying-eager", "reading-eager"),
        10.0,
        "fsync",
        [
            Strike(2.353, "rolling restart", 241413740),
            Strike(7.503, "coordinator dies before its log is committed", 1672915520),
            Strike(9.869, "client killed", 3369696239),
        ],
        brokers=3,
    ),
    # Not the client's fault.
    "a task that began while its process was killed was told of as one that nobody had ended": Plan(
        41129,
        ("copying-cooperative",),
        10.0,
        "os",
        [
            Strike(2.618, "client vanished", 1636736054), Strike(4.795, "client vanished", 2446101258),
            Strike(4.958, "client vanished", 2238331285), Strike(7.266, "I/O error in one partition", 3874624191),
            Strike(7.627, "I/O error in one partition", 1374873819), Strike(7.700, "brokers all cut off", 338007661),
            Strike(8.784, "client vanished", 2771518034),
        ],
        brokers=3,
    ),
    "a consumer whose close was thrown away left its group when its process was dead": Plan(
        42268,
        ("copying-eager", "reading-consumer"),
        10.0,
        "fsync",
        [
            Strike(3.049, "disk full", 2604889023), Strike(3.463, "power lost", 3841939247),
            Strike(4.495, "power lost", 2153443391), Strike(5.735, "pieces", 2669327287),
            Strike(7.194, "coordinator dies before its log is committed", 4181970594),
            Strike(7.775, "power lost", 1378976435), Strike(8.114, "power lost", 391820888),
        ],
        brokers=3,
    ),
    "a second batch reached a partition without the first, and that did not know the producer and wrote it": Plan(
        24267,
        ("in-flight",),
        20.0,
        "os",
        [
            Strike(3.012, "broker paused", 858379038), Strike(6.478, "broker restarted", 2162549785),
            Strike(14.180, "slow network", 2236640294), Strike(16.894, "client vanished", 3028091057),
            Strike(17.496, "broker paused", 3650370879), Strike(19.003, "broker restarted", 10091673),
        ],
    ),
    # Not the product's fault: a client that vanished began a task while its coroutines were closed, and the simulation
    # closed only those that were there before.
    "a task that a vanished client began while its coroutines were closed was left pending": Plan(
        21930,
        ("copying-cooperative",),
        20.0,
        "os",
        [Strike(13.965, "client vanished", 4109693850), Strike(17.192, "client vanished", 3331704470)],
    ),
    # Not the product's fault either: the world dropped the clients of a process that was gone, and they ended
    # themselves as part of the world.
    "a client of a process that was gone connected in the name of the world": Plan(
        21582,
        ("copying-cooperative", "timeouts"),
        20.0,
        "os",
        [Strike(3.338, "client vanished", 57690478), Strike(10.864, "client vanished", 568654228)],
    ),
    "a list of aborts that recovery had written anew was lost with the power, and its emptiness believed": Plan(
        43849,
        ("expiry", "reading-cooperative", "recreated"),
        10.0,
        "os",
        [
            Strike(0.496, "power lost", 910949657), Strike(0.620, "power lost", 3743379396),
            Strike(2.245, "power lost", 2785493992), Strike(2.307, "power lost", 39171471),
            Strike(5.196, "power lost", 1657399177), Strike(7.920, "power lost", 623203185),
        ],
        brokers=3,
    ),
    # Not the broker's fault.
    "a broker was killed while it waited for several answers of ZooKeeper, some of which had failed": Plan(
        43939,
        ("reading-cooperative", "reading-eager", "recreated"),
        10.0,
        "os",
        [
            Strike(0.759, "in-sync set shrinks unwritten", 1747045827),
            Strike(2.084, "in-sync set shrinks unwritten", 1232171815),
            Strike(2.495, "in-sync set shrinks unwritten", 2911957986),
            Strike(3.118, "in-sync set shrinks unwritten", 507926810),
            Strike(3.446, "in-sync set shrinks unwritten", 2999062960),
            Strike(4.201, "I/O error for ever", 3378074401), Strike(4.325, "I/O error for ever", 923211952),
            Strike(4.566, "I/O error for ever", 2649679485), Strike(5.115, "I/O error for ever", 980346585),
            Strike(7.043, "in-sync set shrinks unwritten", 1717790049),
            Strike(7.185, "I/O error for ever", 3814005518), Strike(7.535, "I/O error for ever", 3995151813),
            Strike(8.083, "I/O error for ever", 3515477448), Strike(8.785, "I/O error for ever", 2360045000),
            Strike(9.071, "I/O error for ever", 4102476413),
        ],
        brokers=3,
    ),
    "a bit of a list of aborts went bad in a stop, and a crash came before anybody had read the list": Plan(
        301817,
        ("expiry", "in-flight"),
        20.0,
        "os",
        [Strike(11.251, "index goes bad", 1389351404), Strike(12.711, "index goes bad", 412770890)],
    ),
    # Not the broker's fault.
    "clients had clocks more than an hour ahead, and their records were refused for ever": Plan(
        308270,
        ("copying-consumer",),
        20.0,
        "os",
        [
            Strike(3.408, "clock jumps", 2448690547), Strike(6.695, "clock jumps", 632977538),
            Strike(10.327, "clock jumps", 2889206921), Strike(16.831, "clock jumps", 2306617203),
        ],
    ),
    "a broker whose disk was full did not end its stop: the note of its next life could not be written": Plan(
        600000,
        ("copying-consumer", "idempotent", "reused-sequences"),
        10.0,
        "os",
        [Strike(5.638, "disk full", 302935287), Strike(5.689, "broker restarted", 3210324804)],
        brokers=3,
    ),
    # Not the broker's fault: as in Kafka, a leader that was replaced and has not heard of it takes a sequence that is
    # used again for a retry. The judge had believed its old offset.
    "a leader that was replaced answered a sequence that was used again with the offset of its first record": Plan(
        800033,
        ("copying-eager", "recreated", "reused-sequences"),
        10.0,
        "fsync",
        [
            Strike(5.540, "broker cut off from ZooKeeper", 4044899974),
            Strike(5.929, "coordinator's answers arrive late", 564532985),
            Strike(6.174, "leader killed", 1296673770),
        ],
        brokers=3,
    ),
    # Not the broker's fault: brokers look after their connections (TCP_USER_TIMEOUT). The network did not know that.
    "a marker waited half a minute for a machine that had lost its power and was back": Plan(
        800228,
        ("expiry",),
        10.0,
        "os",
        [
            Strike(0.820, "brokers cut off from each other", 2899711799), Strike(2.170, "index goes bad", 1296210806),
            Strike(6.062, "power lost", 3675128007), Strike(8.756, "power lost", 1357684633),
        ],
        brokers=3,
    ),
    "a broker that was taken for dead cut away what it had written as the leader, and fetched it again": Plan(
        800310,
        ("timeouts",),
        10.0,
        "fsync",
        [
            Strike(0.370, "broker taken for dead", 3013694160), Strike(5.930, "killed while writing", 2702487428),
            Strike(9.007, "rolling restart", 370354197),
        ],
        brokers=3,
    ),
    "leader epochs that went bad after a stop, and a kill before they were written anew": Plan(
        701399,
        ("reused-sequences",),
        20.0,
        "fsync",
        [Strike(19.128, "index goes bad", 3344732918), Strike(19.297, "index goes bad", 718290859)],
    ),
    # Not the broker's fault: before KIP-890 an EndTxn that arrives again ends what is open then.
    "a hostile client cut an old EndTxn off, and its next bytes made it whole": Plan(
        703918,
        ("hostile", "transfers-v1"),
        20.0,
        "fsync",
        [Strike(1.461, "killed while writing", 1662698191)],
    ),
}

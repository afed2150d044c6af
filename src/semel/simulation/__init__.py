"""A world that a seed decides: the real broker and the real clients on virtual time, with faults of every kind.

The code that runs here is the product's, unchanged. What surrounds it is simulated: the event loop and its clock
(`event_loop`), machines and processes (`machines`), threads (`threads`), the network (`network`), the disk (`disk`),
and a ZooKeeper (`zookeeper`). `world` puts them together. `workloads` do the work and `faults` are workloads that break
things; `checkers` judge what came out; `play` is one run, `runs` plays a seed and says how to play it again.
docs/testing.md explains how to add one of each.
"""

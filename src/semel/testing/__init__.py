"""What Semel's own tests stand on, for the tests of its users too: a pytest fixture that is a running broker
(`semel_broker`), a proxy that loses and delays what passes through it (`fault_proxy`), a judge of what clients
saw (`history`), and one of what a broker left on disk (`invariants`)."""

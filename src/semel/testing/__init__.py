"""Test tools, for Semel's own tests and for those of its users.

A pytest fixture with a running broker (`semel_broker`), a proxy that loses and delays messages (`fault_proxy`), a
checker of what clients saw (`history`), and a checker of a broker's data directory (`invariants`).
"""

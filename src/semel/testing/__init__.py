"""Test tools, for Semel's own tests and for those of its users.

Pytest fixtures with a running broker (`semel_broker`) and a running cluster (`semel_cluster`), the cluster itself
(`cluster`; its `network` can be cut), a proxy that loses and delays messages (`fault_proxy`), a checker of what clients
saw (`history`), and a checker of a broker's data directory (`invariants`).
"""

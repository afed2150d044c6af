"""Consumer groups and committed offsets.

`coordinator` answers for both protocols; `classic` and `consumer` (KIP-848) each hold the broker's half and the
member's half. `migration` takes a group from one protocol to the other.
"""

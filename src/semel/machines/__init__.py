"""The state machines: every rule of exactly-once, with no socket, file, clock or log line in sight.

The broker's halves and the client's halves stand side by side here, so that a whole conversation can be read in
one folder and every cell of every table can be tested without a network.
"""

"""Who a client is: the SASL mechanisms of each listener, and the gate that a connection has to pass."""

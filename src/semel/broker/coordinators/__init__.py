"""The coordinators on their internal topics: the host, the transaction and group shells, and the marker sender."""

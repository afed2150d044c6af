"""The consumer. Users call `consumer`; each other module is one of its parts."""

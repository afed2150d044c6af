"""The admin client. Users call `admin`; topics, settings, groups and transactions have a module each."""

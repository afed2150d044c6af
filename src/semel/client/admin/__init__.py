"""The admin client: `admin` is what users call; topics, groups and transactions each have a module."""

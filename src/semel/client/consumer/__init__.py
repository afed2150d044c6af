"""The consumer: `consumer` is what users call, `fetcher` asks leaders for records, `places` keeps positions."""

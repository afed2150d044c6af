"""What the broker stores about itself: topics, settings, quotas, credentials, producer ids."""

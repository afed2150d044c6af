"""This broker as a member of a cluster: its replicas, its leaders and followers, and its place in ZooKeeper."""

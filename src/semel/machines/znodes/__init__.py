"""What the cluster keeps in ZooKeeper: paths, values and changes, as pure values."""

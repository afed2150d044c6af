"""What makes several brokers one cluster. ZooKeeper is the truth; brokers watch it."""

"""Topics and partitions: what exists (`registry`), one of each (`topic`, `partition`), the files behind them (`logs`),
and the broker's own topics (`internal`)."""

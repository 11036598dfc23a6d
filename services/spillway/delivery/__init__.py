"""From a transaction log to a slot's consumer: cursors, readers that slots share, streams."""

"""Physical walreceiver and the WAL store."""

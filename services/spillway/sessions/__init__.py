"""From a source's WAL to its transaction logs: what a worker runs."""

"""The wal2json plugin's loops."""

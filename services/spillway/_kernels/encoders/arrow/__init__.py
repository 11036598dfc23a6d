"""The arrow plugin's loops."""

"""The fast way to write a group: what its changes come to, by few statements for many rows."""

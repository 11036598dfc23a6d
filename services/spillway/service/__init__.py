"""The running service below every interface: sources, decoding sessions, slots."""

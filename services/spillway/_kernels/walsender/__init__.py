"""Batches of messages → what goes over a walsender's socket."""

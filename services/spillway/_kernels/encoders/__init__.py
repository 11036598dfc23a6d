"""Chunks of changes → messages: a loop for each output plugin."""

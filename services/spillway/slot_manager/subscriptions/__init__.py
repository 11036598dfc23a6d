"""Subscriptions: what fills a target from a slot."""

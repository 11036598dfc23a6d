"""Transactions to messages: output plugins."""

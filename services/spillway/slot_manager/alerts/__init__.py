"""Alerts: rules, channels, what was found, and what was sent."""

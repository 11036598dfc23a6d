"""Groups on several connections at once."""

"""Events: what happened, and who did what."""

"""Apply: a slot's changes written into another PostgreSQL, as a subscription does."""

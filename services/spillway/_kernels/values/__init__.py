"""A column's bytes → what somebody else reads: text, the send format, Arrow."""

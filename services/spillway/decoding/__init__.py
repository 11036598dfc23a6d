"""Records to transactions: dispatch, snapshot builder, reorder buffer, spill, TOAST."""

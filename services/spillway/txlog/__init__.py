"""The durable transaction log and its cursors."""

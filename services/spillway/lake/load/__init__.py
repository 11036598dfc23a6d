"""The initial load of tables, beside a running job or without one."""

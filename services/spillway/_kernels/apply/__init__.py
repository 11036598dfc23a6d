"""Applying into PostgreSQL: bytes that become statements, and COPY data passed on."""

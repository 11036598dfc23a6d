"""PostgreSQL's checksum and compression: bytes in, bytes out."""

"""Users: who may come in over PostgreSQL's own protocol."""

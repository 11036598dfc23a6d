"""The REST interface (FastAPI)."""

"""Changes of all that is retained, by table, key, transaction and time."""

"""The PostgreSQL that is filled: connections and their settings, what the role may do there, where
the position is kept, and what a failure of it means.
"""

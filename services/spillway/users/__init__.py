"""Who may come in over PostgreSQL's own protocol, and what they may do there.

REST and gRPC have one token; PostgreSQL's clients bring a name and prove a password. ``verifier``
is what is kept of a password, ``registry`` the users of the metadata store.
"""

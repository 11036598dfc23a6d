"""SQL through the port: a client's statements go to its source, over one connection of its own.

::

    session ──▶ replication_sql   SQL between replication commands, by the simple protocol
            └─▶ relay             a normal connection, both ways at once
                  └─▶ upstream    the connection to the source: targets, authentication

What comes from the source is passed on as it is, in pieces of any size: only heads of messages are
looked at (``_kernels.walsender.frame_heads``). A piece is written before the next one is read, in
both directions, so that a connection costs a few hundred kilobytes whatever runs over it, and a
client that does not read stops its own backend and nothing else.

Who may run SQL (``spillway user --run-sql``) has the rights of the source's credential there.
"""

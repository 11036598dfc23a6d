"""PostgreSQL's own replication protocol: what stock clients of a logical slot speak, on a port of
its own.

A program on top of the engine, beside REST and gRPC. A connection's way::

    server ──▶ handshake ──▶ session ──▶ commands      IDENTIFY_SYSTEM, CREATE_REPLICATION_SLOT, …:
    accept     TLS, startup, messages,                 one answer each
               SCRAM         grammar     copy_stream   START_REPLICATION: batches out, feedback in

Plain SQL goes on to the source, but for what touches slots (:mod:`spillway.walsender.sql`).
``messages`` is the wire's form in both directions, ``failures`` how an error is told in
PostgreSQL's words. Nobody comes in without being a user (:mod:`spillway.users`). What is not served
is refused, with the SQLSTATE that PostgreSQL has for that.
"""

"""A random workload that a seed determines: several sessions, DDL and DML of all kinds.

- ``values``      SQL expressions for values of every type
- ``view``        what a session sees in the catalog: what statements can be made about
- ``session``     one connection: statements, the state of its transaction, the log that replays it
- ``scene``       what a statement is made from: a session, its view, who else has locked what
- ``dml``, ``ddl``, ``objects``, ``transactions``, ``maintenance``: the kinds of statements, by
  weight
- ``driver``      which session does what next
"""

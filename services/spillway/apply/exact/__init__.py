"""Transactions written change by change, as PostgreSQL's apply worker writes them.

::

    group ──▶ writer ──▶ chunk ──▶ statements, pipelined ──▶ as expected? ── yes ─▶ commit
                │                                                 │ no
                │                                                 ▼
                ▼                                     one by one: find, lock, tell the
            two_phase                                 conflict, resolve, write by ctid

``statements`` has the SQL of a table, ``facts`` what its catalog says that only conflicts need,
``rows`` finds and describes rows of the target, ``one_by_one`` resolves, ``writer`` puts
transactions together, ``two_phase`` prepares and finishes them, ``own_tables`` has what is written
beside users' tables.
"""

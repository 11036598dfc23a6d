"""Large transactions, applied while they are in progress on the source.

::

    S (a stretch) ─▶ room for one more? ─ yes ─▶ Beside: a thread and a connection of its own
                            │ no                    BEGIN ─▶ rows ─▶ SAVEPOINT ─▶ rows ─▶ …
                            ▼                        │ anything in its way: ROLLBACK, it is left
                         it is left                  ▼
    A (an abort)                                  ROLLBACK TO, or ROLLBACK
    c, p (its end)                                position, COMMIT or PREPARE, in source order
                         left: the slot is peeked at for this one transaction, which comes whole

``transactions`` knows which there are and what becomes of them; ``beside`` applies one.
"""

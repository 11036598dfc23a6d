"""Into PostgreSQL: what a subscription's apply worker does, as a program beside the servers.

::

    service ──gRPC──▶ stream ──▶ worker ──▶ writers ──▶ target ──▶ PostgreSQL
                        ▲          │  └──▶ sync (first copies)     │
                        └─confirm──┴── what is durable there ◀─────┘

``worker`` is the loop: it takes what has arrived from ``stream``, and has ``writers`` write it as
one group of whole transactions in one transaction of the target: by few statements (``grouped``) if
the rows are as they are expected to be, else change by change (``exact``), where a conflict is seen
by its name and resolved (``conflicts``); on several connections when there is a backlog
(``parallel``); and while a transaction is in progress (``in_progress``).

``sync`` copies tables first, and hands them over at a commit. ``schema`` follows the source's DDL.
``skipped`` does what is left of transactions that are skipped.
``tables`` matches the target's tables with what the source sends. ``target`` is the connection, its
settings and rights, and where the position is kept. ``verify`` compares both sides. ``changes`` are
the values between them, ``options`` what a target of kind ``postgres`` says, ``settings`` what a
program is told, ``assembly`` what a worker is put together from, ``commands`` are ``spillway
apply``.

**Exactly once.** The position is part of the target's own commit, so it is there if and only if the
changes are. On a start the stream begins there. The slot is told of a position only when its commit
is flushed on the target. So whatever dies, and in whatever order, a change that is not there comes
again, and one that is there does not.

**Never two.** A session-level advisory lock of the target's database keeps a second program out; a
replication origin has one user at a time, too.

A program ends with a typed error when it can't go on, and whoever keeps it running starts it again
after a while: every start is a recovery, and there is no other.
"""

"""Subscriptions: what fills a target from a slot, declared once and then kept running.

::

    REST · UI ──▶ interface ──▶ subscriptions ──▶ supervisor ──spawns──▶ hold
                                  │ rows in the     │ watches: its end,   │ exec
                                  │ metadata store  │ status file, log    ▼
                                  │                 └──────────▶ the target's program
                                  ▼                              (spillway lake run)
                  engine: slots, publications ◀─── gRPC, as any client ───┘

``subscriptions`` keeps what is declared and answers for it; a ``supervisor`` a subscription keeps
one program running; ``hold`` is what the program begins as, and what makes it the only one;
``run_processes`` finds and ends what was left over; ``targets`` says which kinds of targets there
are, ``lake_target`` is the built-in one.

**Who launches.** The process that holds the lease of the subscription's source, and it alone: the
slot lives there, and the program talks to that process's gRPC. What it writes down of a run carries
the lease's fencing token. Without the lease it ends its programs at once.

**Never two on one slot.** A run's program holds an exclusive flock on
``<data_dir>/subscriptions/<name>/run.lock`` from before its first line to its last, however it
ends: the kernel gives the lock back, not a clean-up. Before it is exec'ed its pid, its start time,
the boot's id and the run's token are durable in ``run.json``. Its death follows the service's
(PR_SET_PDEATHSIG), since without the service's gRPC it has nothing to do; so after kill -9 of the
service there is nothing to adopt. What is left all the same (a JVM that takes a moment to see that
its driver is gone) carries the token in its environment and is ended before another run begins. The
last line of defence is the target's own: a lake is locked by its job.
"""

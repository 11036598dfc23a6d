"""``spillway certify --wire``: what a client gets from the primary's walsender, and what it gets
from the service's port, byte for byte.

::

    primary ──START_REPLICATION──▶ connection ─▶ side ─┐
    service ──START_REPLICATION──▶ connection ─▶ side ─┴▶ comparison ─▶ report

Both sides are asked for the same slot from the same LSN, by the same program. Each subject has a
temporary slot on either side, which goes with its connection, however that ends.
"""

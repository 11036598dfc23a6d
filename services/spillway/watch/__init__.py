"""How everything stands, looked at from above: what pages show and what alerts are made of.

``sampler`` looks at sources, slots and subscriptions every two seconds; ``views`` is what it makes
of them, ``history`` what it remembers, ``findings`` what somebody should mend. ``actions`` notes
who did what. Knows the service and the subscriber, and no interface.
"""

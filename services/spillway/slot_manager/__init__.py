"""The REST interface: PostgreSQL's slot functions as resources under ``/v1``.

A program on top of the engine: it translates requests into calls of
:class:`spillway.service.interface.EngineInterface` and of
:class:`spillway.subscriber.interface.SubscriptionInterface`, and what comes back into JSON; it
decides nothing. ::

    request → guard (token, origin, size) → routes of a feature → engine → models → response
                        └────────── any error ──────────────┴──→ problem document (RFC 9457)

A feature is a folder (``sources``, ``slots``, ``subscriptions``, ``alerts``, ``changes`` and so on)
with its wire models and its routes. ``app`` puts them together; ``guard`` keeps strangers out;
``problems`` is the one place where errors become responses; ``metrics`` and ``pages`` are what
operators look at. ``openapi/spillway-v1.json`` is the contract as clients see it, made from the app
(``make openapi``) and compared with it by a test.
"""

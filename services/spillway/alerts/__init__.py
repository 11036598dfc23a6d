"""Alerts: somebody who isn't looking is told what is wrong, and told when it is over.

::

     watch: what is wrong ──▶ states ──▶ alerts, messages ──▶ watchman ──▶ webhook · slack · email
     (the overview's own)    (rules)     (metadata store)                  (channels)

A *rule* says which findings (:mod:`spillway.watch.findings`) are told, from where on, and to which
*channels*. What it has found is an *alert*: pending until it has lasted as long as the rule asks,
then firing, then resolved. Each step is stored together with the messages that tell of it, so a
restart, or another process that takes the source over, neither repeats nor loses one. A message is
sent at least once, in the order of its alert, with an id by which a receiver knows it again.

``rules`` and ``channels`` say what may be declared; ``states`` is the state machine, without I/O;
``quiet`` the hours when nobody is told; ``wording`` what a message says; ``outbound``, ``webhook``,
``slack`` and ``email`` send; ``watchman`` does all that as time goes on; ``registry`` is what
interfaces call.
"""

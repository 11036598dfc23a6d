"""The gRPC interface: slots as REST has them, and the change stream.

A program on top of the engine. ``server`` puts the services together behind the token;
``slot_service`` mirrors REST; ``change_stream`` holds a slot for a client and sends it batches,
whose bytes ``wire`` joins without looking at single messages; ``status`` is the one place where
errors become gRPC statuses, and statuses errors again.

For clients there is ``client`` (synchronous, used by ``spillway recv`` and by Spark's tasks), which
needs nothing of the service but ``spillway.v1``, made of ``proto/spillway/v1``.
"""

"""The commands: ``spillway serve``, ``slot``, ``source``, ``subscription``, ``recv``, ``lake`` and
``demo``.

Client commands know the service by its interfaces only: ``slot``, ``source`` and ``subscription``
are REST's calls, ``recv`` is gRPC's stream. ``program`` puts the commands together and is the one
place where an error becomes a message and an exit code. What is heavy (the engine, Spark, gRPC) is
imported by the command that needs it, when it runs.
"""

from spillway.cli.program import main

__all__ = ["main"]

"""The commands: ``spillway serve``, ``spillway slot list`` and so on, a module a command.

Client commands know the service by its interfaces only: ``recv`` is gRPC's stream, the others are
REST's calls (``rest_client``), to the service that the context names (``contexts``). What is
printed, and how wide, is ``output``, ``lists`` and ``tables``. ``program`` puts the commands
together and is the one place where an error becomes a message and an exit code. What is heavy (the
engine, Spark, gRPC) is imported by the command that needs it, when it runs.
"""

from spillway.cli.program import main

__all__ = ["main"]

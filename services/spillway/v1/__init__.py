"""Made of ``proto/spillway/v1`` by ``make proto``; a test compares. Do not edit.

The package has the name that protoc gives Python modules of these files, so that a program which
generates stubs of its own (``spillway/v1/slots_pb2.py`` in its own tree) and has Spillway
installed, too, imports one and the same.
"""

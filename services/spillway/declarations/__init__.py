"""What several interfaces show in the same words, declared once: a slot's columns, a lake's
options.

A declaration is a table of values and knows none of its users. REST models, commands, pages and
gRPC messages are made from it when they are imported; the references, the message in proto/ and the
Terraform provider's tables are files that ``scripts/write_reference.py`` and
``scripts/generate_proto.py`` write from it, and a test holds them equal.
"""

"""Conflicts: a change of the source and a row of the target that don't go together.

``kinds`` has PostgreSQL 18's kinds by name and what may be done about each, ``rules`` what a
subscription wishes, table by table, ``conflict`` the value that says what was met and what became
of it, worded as PostgreSQL words it, and ``log`` the places where it is written down. Nothing here
talks to a server: :mod:`spillway.apply.exact` meets conflicts and resolves them.
"""

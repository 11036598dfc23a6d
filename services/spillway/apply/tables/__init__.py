"""The target's tables, matched with what the source's Relation messages say of theirs.

``matched`` has the values, ``catalog`` asks the target, ``matching`` puts both together by
PostgreSQL's rules, and ``target_tables`` keeps what was found until something changes it.
"""

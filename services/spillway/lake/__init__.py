"""The lake: a Spark data source over slots, and the job that keeps their tables in Delta, Iceberg
or Parquet.

A batch's way::

    source ──▶ batch ──▶ tables ──▶ state
    messages   what to   files and  what is durable, which the slot is told
    of a slot  do        commits
               shape     key_index

``job`` runs it (``spillway lake run``). ``shape`` says what rows become, ``key_index`` where in a
table they are, ``load`` copies what was there before, ``verify`` compares with the source,
``catalogs`` registers tables where others look for them. What users import by name is at the top:
``read``, ``session``, ``jars``, ``metrics``.
"""

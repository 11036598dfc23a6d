"""An archive of WAL decoded by many processes at once: plan, stretches, transactions put together;
no Spark in it.
"""

"""Records → transactions: changes in the change format, gathered, spilled, merged, put into
runs.
"""

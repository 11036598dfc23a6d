"""Kernels of ``spillway apply``: pgoutput's messages in, groups of changes out."""

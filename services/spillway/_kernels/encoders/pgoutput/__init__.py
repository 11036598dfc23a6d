"""The pgoutput plugin's loops."""

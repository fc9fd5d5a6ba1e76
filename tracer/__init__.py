"""Trace files, training dumps, the capture that both become, and the command line."""

"""The trace file, HDF5 format version 1: schema, layout, writer, reader, redaction.

Nothing here imports torch. Modules are imported by name (``drafttrace.tracer.trace.writer``), so that a reader
does not pay for what it does not use.
"""

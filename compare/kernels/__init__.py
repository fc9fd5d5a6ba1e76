"""Compiled loops over rows, and how they are called. Everything here has a plain definition in numpy elsewhere."""

"""Pure functions from two captures to a result: align, measure, locate, diagnose, report."""

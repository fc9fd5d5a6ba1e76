"""``drafttrace audit``: every sample of a dump against what was served, one row each in a table."""

"""Pages that open offline: what the report and the comparison are made of."""

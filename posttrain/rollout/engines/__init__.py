"""Generation engines: one Protocol, and an implementation per file."""

"""Where tokens come from: one Protocol, and an implementation per file."""

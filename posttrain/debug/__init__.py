"""A debugger of recorded episodes: stop at a turn, look, edit, play on, keep edits that help."""

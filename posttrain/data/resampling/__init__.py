"""Which demonstrations to learn from, and how often: a quality filter, a coreset, and rare cells
grown with new, true rows."""

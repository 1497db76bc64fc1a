"""World `errands`: a long conversation whose end needs a fact of its beginning."""

"""Which demonstrations may be learnt from: three flat tables, rules as boolean columns, Great
Expectations over them, a page for people."""

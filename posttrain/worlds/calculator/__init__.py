"""Word problems of arithmetic, and a calculator."""

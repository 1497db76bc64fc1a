"""Which processors, under which settings of the libraries that compute, make equal bytes."""

"""Library of others that pages embed: uPlot 1.6.32, `dist/` of its package on npm, under
the licence beside it."""

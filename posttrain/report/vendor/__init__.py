"""What others wrote and pages carry with them: uPlot 1.6.32, `dist/` of its package on npm, under
the licence beside it."""

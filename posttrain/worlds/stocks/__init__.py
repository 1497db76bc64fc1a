"""The simulated A-share and Hong Kong stock market."""

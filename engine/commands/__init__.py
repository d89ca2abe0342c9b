"""One small module per console script."""

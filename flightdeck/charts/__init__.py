"""Pure drawing: values to characters."""

"""How rows are shown to people, whatever shows them: texts made harmless, numbers as cells, states in a word. Pure."""

"""What a screen is made of: pure functions that yield lines, and thin widgets that show them."""

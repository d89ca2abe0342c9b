"""What the deck knows, as plain values. No Textual here."""

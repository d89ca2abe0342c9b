"""Flight Deck: the cockpit of a fleet. Imports the engine; nothing imports it."""

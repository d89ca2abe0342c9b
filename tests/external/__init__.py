"""Tests that need root or a program that we do not bring: `make test-external`. `make test` leaves them out."""

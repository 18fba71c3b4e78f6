"""Learning from rewards."""

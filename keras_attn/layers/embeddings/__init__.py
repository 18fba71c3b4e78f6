"""From tokens, patches, positions and sound to vectors."""

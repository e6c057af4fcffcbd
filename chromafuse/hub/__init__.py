"""The process that owns the store: it prunes, fetches, checks and answers views."""

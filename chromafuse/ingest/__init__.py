"""A source directory becomes records and is published."""

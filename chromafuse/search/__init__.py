"""grep and rg: which command line means what, and which pages can match it."""

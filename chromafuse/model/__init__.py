"""Values only: access, names, records, snapshots. Imports nothing of ours but errors; no I/O, no trio."""

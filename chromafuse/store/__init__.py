"""The collection: the store protocol, its two implementations, reading and publishing. chromadb only here."""

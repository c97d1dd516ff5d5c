"""The acknowledgements that a core knows: of the cursor, of a consumer's entries, and within a batch."""

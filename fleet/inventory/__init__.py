"""Text -> Inventory: YAML and hostfiles, found, read, narrowed and converted."""

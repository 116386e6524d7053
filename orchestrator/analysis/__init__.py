"""From records to a summary: pure functions; nothing here starts or asks anything."""

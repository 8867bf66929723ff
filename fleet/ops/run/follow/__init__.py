"""Following nodes and stopping them."""

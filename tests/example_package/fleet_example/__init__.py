"""An engine and a transport of another package."""

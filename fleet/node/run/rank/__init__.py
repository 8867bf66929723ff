"""What stands between the engine and the training command."""

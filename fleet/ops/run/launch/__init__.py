"""The whole course of a launch, with its attempts."""

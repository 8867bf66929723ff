"""Decides which ranks run where, with which argv and environment."""

"""The ssh transport, by paramiko, which only the modules of this package import."""

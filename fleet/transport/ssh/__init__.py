"""The ssh transport: paramiko, which only the modules of this package import."""

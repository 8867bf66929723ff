"""A broadcast's chain: each member receives one stream of files and sends it on."""

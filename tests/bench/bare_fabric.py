"""What a user of fabric writes: a thread for each of at most 64 hosts, keys and known_hosts as they should be.

bare_fabric.py KEY KNOWN_HOSTS NAME=ADDRESS...
"""

import sys
from multiprocessing.pool import ThreadPool

import paramiko
from fabric import Config, Connection


def hostname(item: str) -> str:
    name, _, address = item.partition("=")
    config = Config(overrides={"load_ssh_configs": False})
    connect = {"key_filename": KEY, "look_for_keys": False, "allow_agent": False}
    with Connection(address, user="root", config=config, connect_timeout=30, connect_kwargs=connect) as connection:
        connection.client.load_host_keys(KNOWN_HOSTS)
        connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        return f"{name}: {connection.run('hostname', hide=True, in_stream=False).stdout}"


KEY, KNOWN_HOSTS, *ITEMS = sys.argv[1:]
with ThreadPool(64) as pool:
    print(*pool.imap(hostname, ITEMS), sep="", end="")

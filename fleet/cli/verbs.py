"""The verbs: one line each to add one."""

from __future__ import annotations

# heading -> verb -> (where its click command lives, what `fleet --help` says). Modules are imported when the verb runs,
# so that help and completion stay instant.
VERB_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "First steps": {
        "hosts": ("fleet.cli.hosts:hosts", "Show the inventory, or convert it."),
        "setup-ssh": ("fleet.cli.setup_ssh:setup_ssh", "Passwordless SSH between all hosts, every pair verified."),
        "check": ("fleet.cli.check:check", "Compare the hosts' environments; each finding with its remedy."),
        "lab": ("fleet.cli.lab:lab", "Virtual hosts on this machine, to rehearse on."),
        "examples": ("fleet.cli.examples:examples", "Inventories, playbooks and scripts to start from."),
    },
    "Every day": {
        "exec": ("fleet.cli.exec:exec_", "Run a command on every host."),
        "sync": ("fleet.cli.sync:sync", "Code, data or wheels to every host."),
        "launch": ("fleet.cli.launch:launch", "Start a distributed run, follow it, collect every rank's logs."),
        "play": ("fleet.cli.play:play", "Run a playbook of these verbs."),
    },
    "When it fails, and more": {
        "kill-port": ("fleet.cli.kill_port:kill_port", "Show who listens on a port, where, and end them."),
        "build": ("fleet.cli.build:build", "Build a wheel on one host for all: deepspeed, or any tree."),
        "help": ("fleet.cli.help:help_", "Show a verb's help; 'fleet help completion': for your shell."),
    },
}
VERBS = {verb: entry for group in VERB_GROUPS.values() for verb, entry in group.items()}
# these look at no inventory
WITHOUT_INVENTORY = ("lab", "examples", "help")

"""Lists the verbs. Each has one entry; help, completion, playbooks, hints and fleet/api follow this list."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A verb. command: the module and name of its click command, imported only when the verb runs, so that help and
    completion are fast. help: its line in `fleet --help`. api: the methods of fleet.api.Fleet that do the same. hosts:
    whether the verb uses an inventory. step: whether it may be a step of a playbook."""

    command: str
    help: str
    api: tuple[str, ...] = ()
    hosts: bool = True
    step: bool = True


VERB_GROUPS: dict[str, dict[str, Verb]] = {
    "First steps": {
        "init": Verb(
            "fleet.cli.verbs.init:init",
            "Write an inventory: of an ssh config, a hostfile, ssh lines.",
            step=False,
        ),
        "hosts": Verb("fleet.cli.verbs.hosts:hosts", "Show the inventory, or convert it."),
        "setup-ssh": Verb(
            "fleet.cli.verbs.setup_ssh:setup_ssh",
            "Passwordless SSH between all hosts, every pair verified.",
            ("setup_ssh",),
        ),
        "check": Verb(
            "fleet.cli.verbs.check:check", "Compare the hosts' environments; each finding with its remedy.", ("check",)
        ),
        "lab": Verb("fleet.cli.verbs.lab:lab", "Virtual hosts on this machine, to rehearse on.", hosts=False),
        "examples": Verb(
            "fleet.cli.verbs.examples:examples", "Inventories, playbooks and scripts to start from.", hosts=False
        ),
    },
    "Every day": {
        "exec": Verb("fleet.cli.verbs.exec:exec_", "Run a command on every host.", ("exec",)),
        "sync": Verb(
            "fleet.cli.files.sync:sync",
            "Code, data or wheels to every host.",
            ("sync", "sync_data", "sync_image", "sync_wheels"),
        ),
        "launch": Verb(
            "fleet.cli.run.launch:launch",
            "Start a distributed run, follow it, collect every rank's logs.",
            ("launch", "again"),
        ),
        "ps": Verb("fleet.cli.run.ps:ps", "Show the runs on the hosts, started from any head.", ("ps",), step=False),
        "top": Verb(
            "fleet.cli.run.top:top", "What GPUs, network and CPUs of the hosts do, live.", ("top",), step=False
        ),
        "logs": Verb("fleet.cli.run.runs:logs", "Show what a run's ranks wrote, or write.", ("logs",), step=False),
        "attach": Verb(
            "fleet.cli.run.runs:attach", "Follow a run that goes on without its head.", ("attach",), step=False
        ),
        "report": Verb(
            "fleet.cli.run.report:report", "A run on one page: timeline, plots, the first failure.", hosts=False
        ),
        "stacks": Verb(
            "fleet.cli.run.runs:stacks",
            "Where a run's ranks are, and which one elsewhere.",
            ("stacks",),
            step=False,
        ),
        "stop": Verb("fleet.cli.run.runs:stop", "End a run on all its nodes.", ("stop",)),
        "get": Verb("fleet.cli.files.data:get", "Checkpoints and results back to this machine.", ("get",)),
        "play": Verb("fleet.cli.verbs.play:play", "Run a playbook of these verbs.", step=False),
    },
    "When it fails, and more": {
        "ssh": Verb("fleet.cli.verbs.ssh:ssh", "A shell on a host, over the verified connection.", step=False),
        "forward": Verb("fleet.cli.verbs.ssh:forward", "A host's port as one of this machine.", step=False),
        "forget": Verb(
            "fleet.cli.run.runs:forget", "Give up a run whose hosts are gone for good.", ("forget",), step=False
        ),
        "runs": Verb("fleet.cli.run.runs:runs", "The runs that have logs on this machine.", hosts=False, step=False),
        "kill-port": Verb(
            "fleet.cli.verbs.kill_port:kill_port", "Show who listens on a port, where, and end them.", ("kill_port",)
        ),
        "slurm-conf": Verb(
            "fleet.cli.verbs.slurm_conf:slurm_conf_",
            "Slurm's files for these hosts, for who needs a queue.",
            step=False,
        ),
        "pack": Verb(
            "fleet.cli.verbs.pack:pack", "One file that a platform's containers start.", hosts=False, step=False
        ),
        "explain-env": Verb(
            "fleet.cli.verbs.pack:explain_env",
            "What a platform's variables mean for this container.",
            hosts=False,
        ),
        "build": Verb(
            "fleet.cli.files.build:build", "Build a wheel on one host for all: deepspeed, or any tree.", ("build",)
        ),
        "help": Verb(
            "fleet.cli.verbs.help:help_",
            "Show a verb's help, or the answer to a question.",
            hosts=False,
            step=False,
        ),
    },
}
VERBS = {name: verb for group in VERB_GROUPS.values() for name, verb in group.items()}

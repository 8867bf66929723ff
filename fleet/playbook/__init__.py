"""Describes a playbook: a YAML list of fleet's own verbs, checked as a whole before its first step runs.

    - vars: {script: examples/digits.py, password_file: }   # no value: must come from --var
    - name: keys and known hosts
      setup-ssh: {tofu: true, password-file: "${password_file}"}
    - exec: [hostname]                                      # a list: positional arguments, as they are
      on: gpu[01-02]                                        # this step's hosts
      ignore-errors: true
    - task: [tasks.py:prepare, --all]                       # Python tasks: `fleet play tasks.py:prepare --all`
    - launch: {nproc-per-node: 2, env: {LR: 0.1}, script: "${script}", args: [--epochs, 3]}

A step becomes the argv of a command line. Only the click command of a verb defines what the verb accepts; this module
reads it through `Verbs`. Scalars keep their text (`0.10` stays `0.10`). `${name}` is replaced by a variable of the
playbook, never of the environment. `${playbook_dir}` is the playbook's folder; `$${` is a literal `${`.
"""

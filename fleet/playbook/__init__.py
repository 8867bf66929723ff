"""A playbook: a YAML list of fleet's own verbs, checked as a whole before its first step runs.

    - vars: {script: examples/digits.py, password_file: }   # no value: must come from --var
    - name: keys and known hosts
      setup-ssh: {tofu: true, password-file: "${password_file}"}
    - exec: [hostname]                                      # a list: positional arguments, as they are
      on: gpu[01-02]                                        # this step's hosts
      ignore-errors: true
    - task: [tasks.py:prepare, --all]                       # Python tasks: `fleet play tasks.py:prepare --all`
    - launch: {nproc-per-node: 2, env: {LR: 0.1}, script: "${script}", args: [--epochs, 3]}

A step becomes the argv of a command line, nothing else: what a verb accepts, and what it means, is known to
the verb's own command alone, which this module sees through `Verbs`. Scalars keep the text they were
written with (`0.10` stays `0.10`). `${name}` is replaced by variables of the playbook, never by the
environment (`${playbook_dir}` is the folder it lies in); `$${` is a literal `${`.
"""

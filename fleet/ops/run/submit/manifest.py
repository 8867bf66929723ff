"""Makes, for `fleet launch --on k8s`, the manifest of a run, and the commands by which its user applies, follows and
ends the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote
from typing import Any

from fleet.engines.env_file import read_env_file
from fleet.errors import UsageError
from fleet.node.container.channel import SECRET
from fleet.ops.plans import RequestPlan
from fleet.own import read_given
from fleet.requests.manifest import Manifest
from fleet.sources import no_hosts
from fleet.sources.kubernetes.manifest import KINDS, LABEL, text_of


@dataclass(frozen=True)
class ManifestPlan(RequestPlan[Manifest]):
    """Holds the plan. objects: the objects of the manifest. files: files of variables for the Secret of Kubernetes.
    here: names of variables whose values the Secret takes from this environment."""

    objects: Sequence[Mapping[str, Any]]
    files: Sequence[Path]
    here: Sequence[str]

    def steps(self, file: str) -> Iterator[tuple[str, Sequence[str]]]:
        """Yields (the name of a step, its lines for a shell). file: the path of the manifest."""
        name = self.request.name
        made = [f"{each['kind'].lower()}/{name}" for each in self.objects]
        names = f"; printf '%s\\n' {join(self.here)}" if self.here else ""
        files = "".join(f" --from-env-file={quote(str(each))}" for each in self.files)
        # kubectl takes the value of a name without '=' from its environment, so that no typed line shows a value
        secret = f'(echo "{SECRET}=$(head -c 24 /dev/urandom | base64)"{names})'
        yield (
            "apply",
            [
                "fleet pack fleet.pyz",
                f"kubectl create configmap {name} --from-file=fleet.pyz",
                f"{secret} | kubectl create secret generic {name} --from-env-file=/dev/stdin{files}",
                f"kubectl apply -f {quote(file)}",
            ],
        )
        pods = f"-l {LABEL}={name}"
        count = self.request.nnodes
        yield (
            "follow",
            [
                f"kubectl get pods -w {pods}",
                f"kubectl logs -f --prefix --tail=-1 --max-log-requests={count} {pods}",
            ],
        )
        yield "end", [f"kubectl delete {' '.join(reversed(made))} configmap/{name} secret/{name}"]


def plan_of(request: Manifest, files: Sequence[Path] = (), here: Sequence[str] = ()) -> ManifestPlan:
    """Returns the plan. Raises UsageError for an invalid request. files, here: see ManifestPlan."""
    taken = {name: f"--env {name} takes it from here" for name in here}
    for file in files:
        taken |= dict.fromkeys(_check(file, taken), f"{file} has it, too")
    objects = KINDS[request.kind](request)
    shown = {"on": "k8s", "as": request.kind, "run": request.name}
    return ManifestPlan(no_hosts("k8s"), request, shown, text_of(objects), objects, files, here)


def _check(file: Path, taken: Mapping[str, str]) -> Iterator[str]:
    """Yields the names in a file of variables. Raises UsageError if kubectl would read the file in another way than
    fleet. taken: names that are already used -> a text about their origin."""
    text = read_given(file).decode("utf-8", "replace")
    lines = [line.lstrip().removesuffix("\r") for line in text.split("\n")]
    exact, counts = {*lines}, Counter(line.removeprefix("export ").partition("=")[0] for line in lines)
    for name, value in read_env_file(file).items():
        if f"{name}={value}" not in exact:
            hint = "kubectl takes quotes and 'export' for a part of it: write KEY=VALUE alone"
            raise UsageError(f"{file}: {name} is not in the form that kubectl reads", hint=hint)
        if other := taken.get(name, "a second line has it" if counts[name] > 1 else ""):
            hint = "kubectl takes no name twice: leave one of them out"
            raise UsageError(f"{name} is in {file}, and {other}", hint=hint)
        yield name

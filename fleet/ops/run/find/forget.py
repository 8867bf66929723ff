"""`fleet forget RUN`: gives up a run whose hosts are gone for good. No host is contacted."""

from __future__ import annotations

from fleet.answers.runs import Forgotten, GivenUp
from fleet.errors import EXIT_OK, UsageError
from fleet.model import Report, Result
from fleet.node.base.record import whoami
from fleet.node.gang.ends import stopped_by
from fleet.ops.plans import Asked
from fleet.ops.run.find.here import from_folder
from fleet.ops.run.find.stop import end_here
from fleet.ops.run.kept.documents import read_object
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.local import names
from fleet.ops.run.kept.word import choose
from fleet.requests.runs import Forget
from fleet.runtime import Runtime


def run(plan: Asked[Forget], runtime: Runtime) -> Report:
    """Each of its hosts, an error where it is not known how the run ended there, or all that its ranks wrote: it never
    will be. UsageError for a run that is over everywhere."""
    run_id = choose(plan.request.run, names(plan.request.runs))
    path = plan.request.runs / run_id
    if not (path / "summary.json").exists() and (found := from_folder(path, plan.inventory)) is not None:
        end_here(found, plan.request.runs, runtime, stopped_by(whoami()))
    summary = read_object(path / "summary.json")
    given_up = {*summary.get("unknown", ()), *summary.get("incomplete_logs", ())}
    if not given_up:
        raise UsageError(f"run {run_id} needs none of its hosts any more", hint="'fleet runs --prune' takes it away")
    RunFolder(path).amend("summary.json", forgotten=True)
    results = tuple(Result(name, True, answer=GivenUp(name in given_up)) for name in summary["hosts"])
    return Report("forget", results, EXIT_OK, answer=Forgotten(run_id, str(path)))

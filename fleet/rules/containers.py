"""Holds the rules for the inventory's container image: a runtime has it, and its id is the same on all hosts."""

from __future__ import annotations

import shlex

from fleet.node.facts.runtimes import to_install
from fleet.rules.rule import Rule, Sentence, View


def runtime(view: View) -> Sentence | None:
    found = view.get("container")
    if not found or found["runtime"]:
        return None
    return Sentence(f"there is no container runtime for image {found['image']}", to_install(found["image"]))


def silent(view: View) -> str | None:
    return (view.get("container") or {}).get("why")


def missing(view: View) -> Sentence | None:
    found = view.get("container")
    if not found or found.get("id", "not known"):
        return None
    name = shlex.quote(found["image"])
    pull = f"there: {found['runtime']} pull {name}"  # an archive cannot bring an image that is named by its digest
    return Sentence(
        f"{found['runtime']} does not have image {found['image']}",
        pull if "@" in name else f"fleet sync --image {name}",
    )


def image_id(view: View) -> tuple[str, str] | None:
    found = view.get("container") or {}
    if not found.get("id"):
        return None
    # ids of manifests and of configurations cannot be compared
    return f"{found['image']}{' (its manifest)' if found.get('of') else ''}", found["id"]


RULES = (
    Rule("container-runtime", runtime, "clear", "the container runtime", "there: apt install podman crun"),
    Rule(
        "container-silent",
        silent,
        "clear",
        "the container runtime",
        "try it there by hand: podman images, or docker images; often its storage or its daemon hangs",
        "warning",
        says="the container runtime does not answer: {value}",
    ),
    Rule("container-missing", missing, "clear", "the container image", "'fleet sync --image IMAGE' sends it"),
    Rule("container-image", image_id, "digest", "the container image", "'fleet sync --image IMAGE' makes it the same"),
)

"""Defines the requests of `fleet sync`: code, data, or wheels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field
from typing import Literal

from fleet.errors import UsageError
from fleet.inventory.fields import FieldError
from fleet.inventory.fields import image as image_of
from fleet.node.facts.runtimes import file_runtime
from fleet.requests.request import HELP, METAVAR, SECTION, OptionError, Request, option, within

IMPORT_SECONDS = 120.0
CODE, OWN, DATA, IMAGES, WHEELS = (
    "Code",
    "What is the nodes' own",
    "Data",
    "Container images",
    "Wheels",
)  # sections of its help


def _consent(force: bool | Sequence[str], keep: bool) -> None:
    if keep and force is True:
        raise UsageError("--force and --keep exclude each other", hint="--force=PATTERN --keep replaces some of it")


@dataclass(frozen=True, kw_only=True)
class Sync(Request):
    """Requests to make `to` on every host equal to the folder `source`. to: None is the host's workdir.

    force: also replace, without asking, a node's own files and what another source's sync delivered; patterns: only the
    node's own files that match. keep: leave a node's own files. delete_excluded: delete delivered files that are
    excluded now. max_delete: files that may be deleted on a host; "all"; None: not most of them. all: also send what
    needs consent otherwise, except private keys. copy_unsafe_links: send the targets of links that lead out. source_id:
    the name of a source that is created again and again."""

    source: str | os.PathLike[str] = field(default=".", kw_only=False)
    to: str | None = field(
        default=None,
        kw_only=False,
        metadata={
            HELP: "Folder on the hosts [the inventory's workdir, else this folder's path].",
            METAVAR: "DEST",
            SECTION: CODE,
        },
    )
    force: bool | Sequence[str] = option(
        False,
        "Replace without asking what is in the way: a node's own files, which are kept there for 30 days, and what "
        "another source's sync put there. With --wheels: install also what breaks a package there.",
        section=OWN,
    )
    keep: bool = option(False, "Leave what is a node's own, and go on with the rest.", section=OWN)
    delete_excluded: bool = option(False, "Delete what was delivered and is left out now by a pattern.", section=CODE)
    max_delete: int | Literal["all"] | None = option(
        None,
        "Delete up to N files on a host without asking, or all; by default most of what is there needs consent.",
        metavar="N|all",
        limits=within(0),
        section=CODE,
    )
    all: bool = option(
        False,
        "Send what is left out by default, too: environments, caches, folders like .aws; never private keys.",
        section=CODE,
    )
    copy_unsafe_links: bool = option(False, "Send what links that lead out of the source point to.", section=CODE)
    source_id: str | None = option(
        None,
        "What the source is known by, where it is made again and again, as in CI [an id of this folder].",
        metavar="ID",
        section=CODE,
    )

    def check(self) -> None:
        if os.fspath(self.source) == "":  # most likely an unset variable, so it is not taken for the current folder
            raise UsageError("SRC is empty", hint="leave it away, or give '.', for the current folder")
        if self.to is not None and not self.to.strip():
            raise OptionError("to", "is empty", "name a folder on the hosts, '~/work' for instance")
        _consent(self.force, self.keep)


@dataclass(frozen=True, kw_only=True)
class SyncData(Request):
    """Requests to bring each "PATH[:DEST]" to every host by a pipelined broadcast.

    limit: "100MB" or "200mbit" a second. from_host: the host that has PATH, instead of this machine; all others get it.
    force, keep, copy_unsafe_links: see Sync."""

    data: Sequence[str] = option(
        MISSING,
        "Instead of code: data or a model, by pipelined broadcast; repeatable.",
        metavar="PATH[:DEST]",
        completes="file",
        section=DATA,
    )
    limit: str | None = option(
        None,
        "With --data, --image: what may leave its source, 100MB or 200mbit a second.",
        metavar="RATE",
        section=DATA,
    )
    from_host: str | None = option(
        None,
        "With --data, --image: PATH, or the image, is that host's; all others get it, past this machine.",
        "--from",
        metavar="HOST",
        completes="nodeset",
        section=DATA,
    )
    force: bool | Sequence[str] = False
    keep: bool = False
    copy_unsafe_links: bool = False

    def check(self) -> None:
        if not self.data:
            raise OptionError("data", "names nothing", "fleet sync --data PATH[:DEST]")
        _consent(self.force, self.keep)


@dataclass(frozen=True, kw_only=True)
class SyncImage(Request):
    """Requests to bring a container image to every host. image: the name of an image in this machine's podman or
    docker, or an archive that they saved, FILE.tar. A .sif or .sqsh file is sent as data. limit, from_host: see
    SyncData."""

    image: str = option(
        MISSING,
        "Instead of code: a container image, loaded where podman or docker does not have it.",
        metavar="NAME|FILE.tar",
        completes="file",
        section=IMAGES,
    )
    limit: str | None = None
    from_host: str | None = None

    @property
    def is_archive(self) -> bool:
        """Is true where `image` is a file that `save` of podman or docker has made."""
        return self.image.endswith((".tar", ".tar.gz", ".tgz"))

    def check(self) -> None:
        try:
            _ = self.is_archive or image_of(self.image)
        except FieldError as error:
            raise OptionError("image", error.message, error.hint) from None
        if "@" in self.image and not self.is_archive and not file_runtime(self.image):
            raise OptionError(
                "image", "an archive cannot bring a digest", "give it a name: podman tag NAME@DIGEST NAME:TAG"
            )
        if self.is_archive and self.from_host is not None:
            raise UsageError("--from HOST takes the name of an image that it has", hint="on HOST: podman load -i FILE")


@dataclass(frozen=True, kw_only=True)
class SyncWheels(Request):
    """Requests to install wheels into every host's Python, offline, all or none. source: a folder, one wheel, or a
    requirements file. refresh: resolve requirements again. import_timeout: seconds for importing one of them. yes:
    replace what the hosts have, torch for instance, without asking. force: also if it breaks what they have."""

    source: str | os.PathLike[str] = field(kw_only=False)
    refresh: bool = option(False, "With --wheels REQUIREMENTS: resolve and download again.", section=WHEELS)
    import_timeout: float = option(
        IMPORT_SECONDS,
        "With --wheels: seconds that importing one of them may take on a host.",
        metavar="S",
        limits=within(1, 3600),
        section=WHEELS,
    )
    yes: bool = option(
        False,
        "Send what the sync: section names outside the inventory's folder, and with --wheels replace what the hosts "
        "have, without asking.",
        "-y",
        "--yes",
        section="Questions",
    )
    force: bool = False

"""What befalls setup-ssh: nothing half done misleads, and the next one ends well."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.chaos.ground import Ground, said, until, wait
from tests.chaos.sync_faults import errors
from tests.chaos.table import Fault, Seen

AUTHORIZED = "cat /root/.ssh/authorized_keys | sha256sum"


def newcomer(ground: Ground) -> dict[str, str]:
    """The environment of a head that no host knows yet."""
    home = ground.folder / "home"
    home.mkdir()
    (home / "lab.yaml").write_text(
        "defaults: {user: root}\nhosts:\n"
        + "".join(f"  {name}: {{address: {ground.lab.address(name)}}}\n" for name in ground.names)
    )
    return {"HOME": str(home)}


def setup(password: Path | str, *args: str) -> list[str]:
    return ["-i", "home/lab.yaml", "setup-ssh", "--no-mesh", "--tofu", "--password-file", str(password), *args]


def killed(ground: Ground) -> Seen:
    """Killed as soon as a host lets the new head in; once more ends well; undone, all is as it was."""
    env, host = newcomer(ground), ground.names[0]
    before = [ground.lab.sh(h, AUTHORIZED) for h in ground.names]
    ground.slow("256kbit")  # else it may be over before anybody has seen the key
    process = ground.start(*setup(ground.lab.password_file), env=env, start_new_session=True)
    until(lambda: process.poll() is not None or ground.lab.sh(host, AUTHORIZED) != before[0], "a key")
    os.killpg(process.pid, signal.SIGKILL)
    code = wait(process)
    ground.fast(*ground.names)
    again = ground.fleet(*setup(ground.lab.password_file), env=env)
    undone = ground.fleet("-i", "home/lab.yaml", "setup-ssh", "--undo", env=env)
    same = before == [ground.lab.sh(h, AUTHORIZED) for h in ground.names]
    return Seen(
        code,
        f"again {again.returncode}, undo {undone.returncode} {errors(again.stderr + undone.stderr)}",
        "keys as before" if same else "OTHER KEYS",
    )


def wrong_password(ground: Ground) -> Seen:
    env = newcomer(ground)
    password = ground.folder / "pw"
    password.write_text("not-it\n")
    password.chmod(0o600)
    before = [ground.lab.sh(h, AUTHORIZED) for h in ground.names]
    process = ground.start(*setup(password), env=env)
    code = wait(process)
    same = before == [ground.lab.sh(h, AUTHORIZED) for h in ground.names]
    words = said(process)
    return Seen(
        code, "ITS PASSWORD SHOWS " * ("not-it" in words) + errors(words), "keys as before" if same else "OTHER KEYS"
    )


FAULTS = (
    Fault("setup-ssh: killed -9", killed, -9, "^again 0, undo 0", "keys as before"),
    Fault(
        "setup-ssh: a wrong password",
        wrong_password,
        122,
        "error: host lab.*: not authenticated as root: tried .*password",
        "keys as before",
    ),
)

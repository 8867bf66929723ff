"""Which keywords of ssh_config are followed, or make no difference, and in which form."""

from __future__ import annotations

import re

_WORD = r"[A-Za-z0-9_./~@:+,-]+"
_HOP = r"(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.-]*(?::[1-9][0-9]{0,3})?"
_FILES = rf"(?!(?i:none)\b){_WORD}(?:[ \t]+(?!(?i:none)\b){_WORD})*"
_FLAG, _NUMBER = r"(?i:yes|no|true|false)", r"[1-9][0-9]{0,4}"


def _forms(keywords: dict[str, str]) -> dict[str, re.Pattern[str]]:
    return {key: re.compile(form, re.ASCII) for form, keys in keywords.items() for key in keys.split()}


# What is followed, and in which form. A value of another form is ssh's to read, or to refuse.
FOLLOWED = _forms(
    {
        r"(?:[A-Za-z0-9_.:-]|%h)+": "hostname",
        r"[A-Za-z0-9_][A-Za-z0-9_.@-]*": "user",
        r"[1-9][0-9]{0,3}|[1-5][0-9]{4}": "port",
        rf"none|{_HOP}(?:,{_HOP})*": "proxyjump",
        _FLAG: "identitiesonly",
        _WORD: "identityfile certificatefile identityagent hostkeyalias",
        _FILES: "userknownhostsfile globalknownhostsfile",
    }
)
# What makes no difference to where fleet goes, when it is well-formed.
IDLE = _forms(
    {
        _FLAG: "batchmode checkhostip compression exitonforwardfailure forwardagent forwardx11 forwardx11trusted "
        "gssapiauthentication gssapidelegatecredentials hashknownhosts passwordauthentication tcpkeepalive "
        "visualhostkey",
        _NUMBER: "connecttimeout serveraliveinterval serveralivecountmax",
        r"yes|no|ask": "updatehostkeys",
        r"yes|no|ask|off|accept-new": "stricthostkeychecking",
        r"yes|no|ask|confirm": "addkeystoagent",
        r"yes|no|ask|auto|autoask": "controlmaster",
        rf"yes|no|{_NUMBER}[smhd]?": "controlpersist",
        r"(?:[\w./~@:-]|%[CLhlnpru])+": "controlpath",
        r"QUIET|FATAL|ERROR|INFO|VERBOSE": "loglevel",
        r"[A-Z][A-Z0-9_* \t]*": "sendenv",
    }
)
# A distribution names its algorithms rightly; whether a user does is for ssh to say.
IDLE_SYSTEM = IDLE | _forms(
    {
        r"[+^-]?[A-Za-z0-9@.,*-]+": "ciphers macs kexalgorithms gssapikexalgorithms hostkeyalgorithms requiredrsasize "
        "pubkeyacceptedalgorithms hostbasedacceptedalgorithms casignaturealgorithms",
    }
)

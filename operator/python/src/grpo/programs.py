"""Finds and runs the programs that this package asks: `kubectl-grpo` and `kubectl`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.errors import CommandFailed, ProgramMissing

PLUGIN_VARIABLE = "GRPO_KUBECTL_PLUGIN"
# Longer output of a program is cut in a message: its end has the error.
MOST_SHOWN = 4000
# A plan reads manifests and at most all nodes and pods of a cluster.
COMMAND_SECONDS = 300.0


@dataclass(frozen=True)
class Cluster:
    """The cluster and namespace, as options of kubectl. None: as kubectl decides."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | os.PathLike[str] | None = None

    def flags(self) -> list[str]:
        named = {"--namespace": self.namespace, "--context": self.context, "--kubeconfig": self.kubeconfig}
        return [word for flag, value in named.items() if value is not None for word in (flag, os.fspath(value))]


def plugin() -> str:
    """The program `kubectl-grpo`."""
    given = os.environ.get(PLUGIN_VARIABLE)
    if given:
        found = shutil.which(given)
        if found is None:
            raise ProgramMissing(
                f"{PLUGIN_VARIABLE} names {given}, which is no executable file; "
                "set it to the path of kubectl-grpo, or unset it to use the one on the PATH"
            )
        return found
    found = shutil.which("kubectl-grpo")
    if found is None:
        raise ProgramMissing(
            "the program kubectl-grpo is not on the PATH; `make install-plugin` in the repository of grpo-operator "
            f"builds it into ~/.local/bin, or set {PLUGIN_VARIABLE} to its path"
        )
    return found


def kubectl() -> str:
    """The program `kubectl`."""
    found = shutil.which("kubectl")
    if found is None:
        raise ProgramMissing(
            "the program kubectl is not on the PATH; install it (https://kubernetes.io/docs/tasks/tools)"
        )
    return found


def shown(output: str) -> str:
    """The end of a program's output, without characters that control a terminal."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output).strip()
    text = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= MOST_SHOWN else f"...{text[-MOST_SHOWN:]}"


def run(
    words: Sequence[str],
    given: str | None = None,
    accepted: Sequence[int] = (0,),
    seconds: float = COMMAND_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end. `given` is its standard input, `accepted` are the exit statuses of success."""
    said = f"`{os.path.basename(words[0])} {' '.join(words[1:])}`"
    try:
        done = subprocess.run(
            list(words),
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise CommandFailed(
            f"{said} has not ended after {seconds:.0f} s and was stopped; "
            "is the cluster reachable? `kubectl version` tells",
            -1,
        ) from late
    except OSError as error:
        raise ProgramMissing(f"starting {words[0]}: {error.strerror or error}; reinstall the program") from error
    if done.returncode not in accepted:
        cause = shown(done.stderr) or shown(done.stdout) or "it printed no cause; run it in a terminal"
        raise CommandFailed(f"{said} ended with exit status {done.returncode}: {cause}", done.returncode)
    return done

"""SWE-ReX 1.4.0's own RemoteRuntime against a gateway: `swe_rex.py GATEWAY FOLDER`.

The sandboxes of the gateway must see FOLDER. Prints a line for every behaviour that was seen, and fails at the first that was not.
"""

import asyncio
import json
import pathlib
import sys
import urllib.error
import urllib.request
import uuid

import pexpect
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SwerexException,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime

GATEWAY, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])


def seen(what):
    print(f"ok: {what}", flush=True)


def lease():
    name = uuid.uuid4().hex
    asked = {"id": name, "run": "rex", "image": "task:1", "ttlSeconds": 300, "waitSeconds": 60, "priority": "Agent"}
    urllib.request.urlopen(urllib.request.Request(f"{GATEWAY}/v1/leases", json.dumps(asked).encode(), method="POST"))
    return name


async def raises(kind, call, part=""):
    try:
        answer = await call
    except kind as error:
        assert part in str(error), error
        return error
    raise AssertionError(f"{answer} instead of {kind.__name__}")


async def sessions(runtime):
    created = await runtime.create_session(CreateBashSessionRequest())
    assert created.session_type == "bash"
    await raises(SessionExistsError, runtime.create_session(CreateBashSessionRequest()))

    async def run(command, **more):
        return await runtime.run_in_session(BashAction(command=command, **more))

    said = await run(f"cd {FOLDER} && export X=5")
    assert (said.output, said.exit_code) == ("", 0), said
    said = await run("pwd; echo $X")
    assert said.output.splitlines() == [str(FOLDER), "5"], said
    said = await run("cat <<'EOF'\none\n\ntwo\nEOF\nfor i in 1 2; do\n  echo $i\ndone")
    assert said.output == "one\n\ntwo\n1\n2\n", said
    said = await run("echo " + "x" * 9000)
    assert said.output == "x" * 9000 + "\n", len(said.output)
    seen("a session keeps folder and variables, and takes many and long lines")
    said = await run("echo oops; false", check="silent")
    assert (said.output, said.exit_code) == ("oops\n", 1), said
    said = await run("false", check="ignore")
    assert said.exit_code is None, said
    error = await raises(NonZeroExitCodeError, run("echo why; (exit 3)", error_msg="mine"), "mine: ")
    assert "exit code 3" in str(error) and "why" in str(error)
    await raises(BashIncorrectSyntaxError, run("if true"))
    seen("exit codes are told, raised or left as asked, and wrong syntax is said before anything runs")
    await raises(CommandTimeoutError, run("sleep 600", timeout=0.5), "timeout after 0.5 seconds")
    said = await runtime.run_in_session(BashInterruptAction(timeout=5))
    assert said.exit_code == 0, said
    said = await run("echo back")
    assert (said.output, said.exit_code) == ("back\n", 0), said
    seen("a command that timed out can be interrupted, and the session continues")
    said = await run("python3 -q", is_interactive_command=True, expect=[">>> "], timeout=20)
    assert said.expect_string == ">>> ", said
    said = await run("print(6 * 7)", is_interactive_command=True, expect=[">>> "], timeout=20)
    assert "42" in said.output, said
    await run("exit()", is_interactive_quit=True, timeout=20)
    said = await run("echo shell again")
    assert said.output == "shell again\n", said
    seen("an interactive program is talked to by its prompt")
    await runtime.create_session(CreateBashSessionRequest(session="other"))
    said = await runtime.run_in_session(BashAction(session="other", command="echo ${X:-none}"))
    assert said.output == "none\n", said
    await runtime.close_session(CloseBashSessionRequest(session="other"))
    await raises(SessionDoesNotExistError, runtime.run_in_session(BashAction(session="other", command="true")))
    await raises(SessionDoesNotExistError, runtime.close_session(CloseBashSessionRequest(session="other")))
    seen("sessions are apart, and closed ones are gone")
    await raises(pexpect.EOF, run("exit 4"), "has ended")
    seen("a shell that ends says so")
    rc = FOLDER / "rc"
    rc.write_text("export FROM_RC=yes PS1='mine> '\necho sourced\n")
    await runtime.create_session(CreateBashSessionRequest(session="rc", startup_source=[str(rc)]))
    said = await runtime.run_in_session(BashAction(session="rc", command="echo $FROM_RC"))
    assert said.output == "yes\n", said
    seen("a session sources its startup files when it begins, even if they change the prompt")


async def commands(runtime):
    done = await runtime.execute(Command(command=["sh", "-c", "echo out; echo err >&2; exit 3"]))
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3), done
    done = await runtime.execute(Command(command="echo $Y; echo err >&2", shell=True, env={"Y": "z", "PATH": "/usr/bin:/bin"}, merge_output_streams=True))
    assert (done.stdout, done.stderr) == ("z\nerr\n", ""), done
    done = await runtime.execute(Command(command=["pwd"], cwd=str(FOLDER)))
    assert done.stdout.strip() == str(FOLDER), done
    await raises(CommandTimeoutError, runtime.execute(Command(command=["sleep", "600"], timeout=1)))
    await raises(NonZeroExitCodeError, runtime.execute(Command(command=["false"], check=True, error_msg="mine")), "mine: ")
    seen("commands run with streams apart or together, in their folder and environment, and within their time")


async def files(runtime):
    path = FOLDER / "deep/er/file"
    await runtime.write_file(WriteFileRequest(path=str(path), content="über\r\nmore\n"))
    assert path.read_bytes() == "über\r\nmore\n".encode()
    assert (await runtime.read_file(ReadFileRequest(path=str(path)))).content == "über\nmore\n"
    path.chmod(0o755)
    await runtime.write_file(WriteFileRequest(path=str(path), content="new"))
    assert path.stat().st_mode & 0o777 == 0o755
    await raises(FileNotFoundError, runtime.read_file(ReadFileRequest(path=str(FOLDER / "none"))))
    path.write_bytes(b"\xffx")
    assert (await runtime.read_file(ReadFileRequest(path=str(path), errors="ignore"))).content == "x"
    await raises(ValueError, runtime.read_file(ReadFileRequest(path=str(path))))
    source, target = FOLDER / "source", FOLDER / "target"
    (source / "sub").mkdir(parents=True)
    (source / "sub/a").write_text("a")
    (source / "b").write_bytes(bytes(range(256)) * 100)
    await runtime.upload(UploadRequest(source_path=str(source), target_path=str(target)))
    assert (target / "sub/a").read_text() == "a" and (target / "b").read_bytes() == bytes(range(256)) * 100
    await runtime.upload(UploadRequest(source_path=str(source / "b"), target_path=str(target / "c/d")))
    assert (target / "c/d").read_bytes() == bytes(range(256)) * 100
    seen("files and folders go in and out, and keep their permissions")


async def main():
    name = lease()
    runtime = RemoteRuntime(host=f"{GATEWAY}/compat/swerex/{name}", port=None, auth_token="")
    assert (await runtime.wait_until_alive(timeout=20)) is not False
    assert (await runtime.is_alive()).is_alive
    await sessions(runtime)
    await commands(runtime)
    await files(runtime)
    await runtime.close()
    gone = await runtime.is_alive()
    assert not gone.is_alive and name in gone.message, gone
    await raises(SwerexException, runtime.execute(Command(command=["true"])), name)
    seen("close gives the lease back, and a lease that is gone is no longer alive")
    keyed = RemoteRuntime(host=f"{GATEWAY}/compat/swerex", port=None, auth_token=lease())
    done = await keyed.execute(Command(command=["echo", "hi"]))
    assert done.stdout == "hi\n", done
    await keyed.close()
    seen("the lease's id may be the key instead")


asyncio.run(main())

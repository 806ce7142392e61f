#!/usr/bin/env python3
"""Records how the edit script of mini-swe-agent-plus answers, for sandbox-image/edit-tool/tests/answers.jsonl.

    python3.11 e2e/edit_tool/record.py                 fetches the script from GitHub and records
    python3.11 e2e/edit_tool/record.py --script FILE   takes a copy of the script

The script itself (Kwai-Klear/mini-swe-agent-plus, MIT licence) is not kept. Each line of the result is one call: the
files before it, its arguments, both streams, the exit status, and the files after it. Bytes are written as the code
points of the same number.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

URL = (
    "https://raw.githubusercontent.com/Kwai-Klear/mini-swe-agent-plus/0ea04fa/"
    "src/minisweagent/environments/str_replace.py"
)
SHA256 = "ffd819b397d9cb51b039ca93992f7dc024838085a77948a9cfa3bbe2ebb601a8"
NAME = "edit_via_str_replace"
ANSWERS = pathlib.Path(__file__).parents[2] / "sandbox-image/edit-tool/tests/answers.jsonl"

GREET = 'def greet(name):\n    print("Hello,", name)\n\n\ndef bye(name):\n    print("Bye,", name)\n'
LONG = "".join(f"line {number}\n" for number in range(1, 121))
TABS = "def f():\n\tif a:\n\t\treturn 1\n  \treturn 2\n"


def cases():
    """Pairs of files and arguments."""
    a = {"a.py": GREET}
    # What the prompt shows, and what comes of it.
    yield a, ["a.py", "--", 'def greet(name):\n    print("Hello,", name)', 'def greet(name: str):\n    return "Hello"']
    yield a, ["a.py", "--", "def greet", "def meet"]
    yield a, ["a.py", "--", "name", "person"]
    yield a, ["a.py", "--", "absent", "x"]
    yield a, ["a.py", "--", "", "x"]
    yield a, ["a.py", "--", "\n\n\ndef bye", ""]
    yield a, ["a.py", "--", GREET, ""]
    yield a, ["a.py", "--", GREET, GREET]
    yield a, ["a.py", "--", 'print("Bye,", name)\n', 'print("Bye,", name)']
    yield a, ["a.py", "--", "def greet(name):", "def greet(name):\n\n\n\n\n\n\n\n\n\n    pass"]
    yield a, ["a.py", "--", "\n", "x"]
    yield a, ["a.py", "def greet", "def meet"]
    yield a, ["a.py", "--dry-run", "--", "def greet", "def meet"]
    yield a, ["a.py", "--", "def greet", "def meet", "--dry-run"]
    yield a, ["--dry-run", "a.py", "--", "name", "x"]
    yield {"a": "aaa"}, ["a", "--", "aa", "b"]
    yield {"a": "aaaa"}, ["a", "--", "aa", "b"]
    yield {"a": "abcabd"}, ["a", "--", "abd", "x"]
    yield {"a": ""}, ["a", "--", "x", "y"]
    yield {"a": ""}, ["a", "--", "", "y"]
    yield {"a": "x"}, ["a", "--", "x", ""]
    yield {"a": "x"}, ["a", "--", "x", "\n"]
    yield {"a": "x"}, ["a", "--", "x", "\n\n\n"]
    # Context.
    for lines in ["0", "1", "3", "10", "500", "-1", "-2", "-500", "+2", " 2 ", "1_0", "99999999999999999999"]:
        yield {"a": LONG}, ["a", "--context-lines", lines, "--", "line 99\n", "line 99 and more\nand more\n"]
        yield {"a": LONG}, [f"--context-lines={lines}", "a", "--", "line 5\n", ""]
    for lines in ["", "x", "1.5", "0x10", "1__0", "_1", "it's", 'a"b', "\\", "\t", "é", "\u200b", "1 2", "-", "-x"]:
        yield {"a": LONG}, ["--context-lines", lines, "a", "line 5\n", ""]
    yield {"a": LONG}, ["a", "--context-lines", "9" * 4301, "--", "line 5\n", ""]
    yield {"a": LONG}, ["a", "--context-lines"]
    yield {"a": LONG}, ["a", "--context-lines", "--", "line 5\n", ""]
    yield {"a": LONG}, ["a", "--context-lines", "--dry-run", "--", "line 5\n", ""]
    # Paths.
    deep = {"d/e/a.py": GREET}
    for path in ["d/e/a.py", "./d/e/a.py", "d//e/./a.py", "d/../d/e/a.py", "d/e/a.py/", "d", "d/", ".", "", "/", "//", "///",
                 "d/e", "d/missing.py", "missing/a.py", "d/e/a.py/x", "it's", 'a"b', "it's \"", "a\nb", "a\\b", "é", "a\tb",
                 "\u200b", "~", "x" * 300, "\x7f", "😀", "a b", "\u00a0", "\u00ad", "\ufeff", "\ue000"]:
        yield deep, [path, "--", "def greet", "def meet"]
    yield {"a b": "x"}, ["a b", "--", "x", "y"]
    yield {"é": "x"}, ["é", "--", "x", "y"]
    yield {"é": "x"}, ["é", "--", "z", "y"]
    yield {b"\xff": "x"}, [b"\xff", "--", "x", "y"]
    yield {b"\xff": "x"}, [b"\xff", "--", "z", "y"]
    yield {}, [b"\xff\xfea", "--", "z", "y"]
    yield {"-a": "x"}, ["--", "-a", "x", "y"]
    yield {"-a": "x"}, ["-a", "--", "x", "y"]
    yield {"-1": "x"}, ["-1", "--", "x", "y"]
    # Line ends.
    for text in ["a\r\nb\r\nc\r\n", "a\rb\rc", "a\r\n\rb\n\r\nc", "a\n\rb"]:
        yield {"a": text}, ["a", "--", "b", "B"]
        yield {"a": text}, ["a", "--", "a\nb", "B"]
        yield {"a": text}, ["a", "--", "a\r\nb", "B"]
        yield {"a": text}, ["a", "--", "b", "x\r\ny"]
        yield {"a": text}, ["a", "--dry-run", "--", "c", "x\ry"]
    for text in ["a\x0bb\x0cb2\x85c\u2028d", "\x00a\x00", "\x1b[31ma"]:
        yield {"a": text}, ["a", "--", "a", "A"]
    # Encodings.
    yield {"a": "é ü 漢字 😀\n"}, ["a", "--", "漢", "汉\n字"]
    yield {"a": "é ü 漢字 😀\n"}, ["a", "--", "😀", "🙂"]
    yield {"a": "é ü 漢字 😀 漢\n"}, ["a", "--", "漢", "汉"]
    yield {"a": "é\n"}, ["a", "--", "e\u0301", "x"]
    yield {"a": b"\xff\xfe"}, ["a", "--", "x", "y"]
    yield {"a": b"caf\xe9\n"}, ["a", "--", "caf", "y"]
    yield {"a": b"x\xed\xa0\x80"}, ["a", "--", "x", "y"]
    yield {"a": b"x\xc0\x80"}, ["a", "--", "x", "y"]
    yield {"a": b"x\xe2\x82"}, ["a", "--", "x", "y"]
    yield {"a": "x"}, ["a", "--", "x", b"a\xff\xfeb"]
    yield {"a": "x"}, ["a", "--", "x", b"\xff"]
    yield {"a": "x"}, ["a", "--dry-run", "--", "x", b"a\xe2\x82b"]
    yield {"a": "x"}, ["a", "--", b"\xff", "y"]
    yield {"a": b"\xef\xbb\xbfx\n"}, ["a", "--", "x", "y"]
    yield {"a": b"\xef\xbb\xbfx\n"}, ["a", "--encoding", "utf-8-sig", "--", "x", "y"]
    yield {"a": b"x\n"}, ["a", "--encoding", "utf-8-sig", "--", "x", "y"]
    for encoding in ["utf-8", "UTF8", "utf_8", "U8", "utf", "utf--8", "latin-1", "latin1", "L1", "iso-8859-1", "ISO8859-1", "8859",
                     "cp819", "ascii", "us-ascii", "646"]:
        yield {"a": b"caf\xe9\n"}, ["a", "--encoding", encoding, "--", "caf", "y"]
        yield {"a": b"cafe\n"}, ["a", f"--encoding={encoding}", "--", "e", "é\u20ac😀x"]
        yield {"a": b"cafe\n"}, ["a", f"--encoding={encoding}", "--", "e", "\u20ac"]
    for encoding in ["nope", "", "é", "utf-9", "a b"]:
        yield {"a": b"caf\xe9\n"}, ["a", "--encoding", encoding, "--", "caf", "y"]
        yield {}, ["a", "--encoding", encoding, "--", "caf", "y"]
    for encoding in ["utf-16", "utf-16-le", "utf-16-be"]:
        text = "aé漢😀\r\nb\n"
        yield {"a": text.encode(encoding)}, ["a", "--encoding", encoding, "--", "漢", "汉😀"]
        yield {"a": text.encode("utf-16-le")}, ["a", "--encoding", encoding, "--", "b", "c"]
        yield {"a": text.encode("utf-16")}, ["a", "--encoding", encoding, "--", "b", "c"]
        yield {"a": b"abc"}, ["a", "--encoding", encoding, "--", "b", "c"]
        yield {"a": b"\x00\xd8a\x00"}, ["a", "--encoding", encoding, "--", "b", "c"]
        yield {"a": "b".encode(encoding)}, ["a", "--encoding", encoding, "--", "b", b"\xff"]
    # Backups.
    yield a, ["a.py", "--backup-suffix", ".bak", "--", "def greet", "def meet"]
    yield {"a": "a\r\nb"}, ["a", "--backup-suffix=~", "--", "a", "x"]
    yield {"a": b"caf\xe9"}, ["a", "--backup-suffix=~", "--encoding=latin-1", "--", "a", "\u20ac"]
    yield {"a": "x"}, ["a", "--backup-suffix", "/b", "--", "x", "y"]
    yield {"a": "x", "ab/c": ""}, ["a", "--backup-suffix", "b", "--", "x", "y"]
    yield {"a": "x", "ab/c": ""}, ["a", "--backup-suffix", "b//./c", "--", "x", "y"]
    yield {"a": "x"}, ["a", "--backup-suffix", "", "--", "x", "y"]
    yield {"a": "x"}, ["a", "--backup-suffix", ".bak", "--dry-run", "--", "x", "y"]
    # Tabs.
    for old, new in [("        if a:", "        if b:"), ("\tif a:", "\tif b:"), ("\t\treturn 1", "\t\treturn 3\n\treturn 4"),
                     ("  \treturn 2", ""), ("return", "x"), ("a", "a\tb"), ("absent", "x"), ("", "x")]:
        for options in [["--expand-tabs"], ["--expand-tabs", "--tabsize", "4"], ["--expand-tabs", "--tabsize=0", "--dry-run"],
                        ["--expand-tabs", "--tabsize=-3"], ["--tabsize", "4"]]:
            yield {"a": TABS}, ["a", *options, "--", old, new]
    yield {"a": "é\tx漢\ty\r\n\tz"}, ["a", "--expand-tabs", "--", "y", "\tY"]
    for size in ["2147483648", "-2147483648", "-2147483649", "9" * 30, "x"]:
        yield {"a": "x"}, ["a", "--expand-tabs", "--tabsize", size, "--", "x", "y"]
    # Command lines.
    for arguments in [
        [], ["a"], ["a", "x"], ["a", "--", "x"], ["a", "x", "y", "z"], ["a", "--", "x", "y", "z"], ["a", "x", "--", "y", "z"],
        ["a", "x", "y", "z", "--", "u"], ["-h"], ["--help"], ["--he"], ["a", "x", "y", "-h"], ["-h", "--nope"], ["--nope", "-h"],
        ["-hh"], ["-hx"], ["-hhx"], ["-h=x"], ["-h="], ["--help=x"], ["--help="], ["--nope"], ["a", "--nope", "x", "y"],
        ["a", "--nope=3", "x", "y"], ["a", "-n", "x", "y"], ["a", "x", "y", "-n 3"], ["a", "-x = 1", "y"], ["a", "x", "- y"],
        ["a", "x", "-"], ["a", "-", "y"], ["a", "x", "-5"], ["a", "x", "-.5"], ["a", "x", "-5.5"], ["a", "x", "-5."], ["a", "x", "-5x"],
        ["a", "x", "--y z"], ["a", "x", "--dry-run z"], ["a", "x", "-x"], ["a", "x", "-x y"], ["a", "x", "-1\n"], ["a", "x", "--\n"],
        ["--e", "utf-8", "a", "x", "y"], ["--en", "utf-8", "a", "x", "y"], ["--ex", "a", "x", "y"], ["--dry", "a", "x", "y"],
        ["--d", "a", "x", "y"], ["--t=4", "a", "x", "y"], ["--e=x y", "a", "x", "y"], ["--dry-run=1", "a", "x", "y"], ["--dry=", "a", "x", "y"],
        ["--context", "a", "x", "y"], ["--context-line=1", "a", "x", "y"], ["--=x", "a", "x", "y"], ["---", "a", "x", "y"],
        ["--context-linesx", "1", "a", "x", "y"], ["a", "--", "--dry-run", "x"], ["a", "--", "-x", "y"], ["--", "a", "x", "y"],
        ["a", "x", "--", "y"], ["a", "x", "y", "--"], ["a", "x", "--", "--"], ["a", "--", "--", "y"], ["a", "--", "x", "--"],
        ["a", "--", "--", "--"], ["a", "--", "--", "x", "y"], ["a", "--dry-run", "--", "--", "y"], ["--", "--", "x", "y"],
        ["a", "--dry-run", "x", "--dry-run", "y"], ["a", "x", "--context-lines", "1", "y"], ["--context-lines", "1", "--context-lines", "0", "a", "x", "y"],
        ["--encoding", "a", "x", "y"], ["--backup-suffix"], ["a", "x", "y", "--tabsize"], ["--tabsize", "--", "a", "x", "y"],
        ["a", "x", "y", "--expand-tabs", "z"], ["a", "--expand-tabs", "--", "--", "y"], ["a", "--expand-tabs", "--", "x", "--"],
        ["a", "", ""], ["a", "x", ""], ["", "", ""], ["a", "x", "y", ""], ["a", "é", "-é"], ["a", "x", b"-\xff"], ["a", "x", "y", b"\xff"],
        [b"--e\xff", "a", "x", "y"], ["--e=\xe9", "a", "x", "y"],
    ]:
        yield {"a": "x\n-- y\n--\n-5\n"}, arguments
    # Any other edits.
    dice = random.Random(19)
    letters = ["a", "b", "ab", "\n", "\n", " ", "  ", "\t", "é", "漢", "\r\n", "😀", "-", "--", "x = 1\n", "def f():\n"]
    for _ in range(150):
        text = "".join(dice.choice(letters) for _ in range(dice.randint(0, 60)))
        begin = dice.randint(0, len(text))
        old = text[begin:begin + dice.choice([1, 2, 3, 5, 8, 20])].replace("\r\n", "\n")
        if dice.random() < 0.15:
            old = dice.choice(letters)
        new = "".join(dice.choice(letters) for _ in range(dice.randint(0, 8)))
        options = dice.choice([[], [], [], ["--dry-run"], ["--expand-tabs"], ["--context-lines", str(dice.randint(-1, 6))]])
        yield {"a": text}, [*options, "a", *(["--"] if dice.random() < 0.8 else []), old, new]


def to_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


def listed(data):
    return data.decode("latin-1")


def files_below(folder):
    files = {}
    for path in sorted(pathlib.Path(os.fsdecode(folder)).rglob("*")):
        if path.is_file() and path.name != NAME:
            files[listed(os.fsencode(path.relative_to(os.fsdecode(folder))))] = listed(path.read_bytes())
    return files


def recorded(script, files, arguments):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = pathlib.Path(folder, os.fsdecode(to_bytes(name)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(to_bytes(content))
        before = files_below(folder)
        pathlib.Path(folder, NAME).write_text(script)
        environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        arguments = [to_bytes(argument) for argument in arguments]
        command = [os.fsencode(sys.executable), NAME.encode(), *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
        after = files_below(folder)
    case = {"files": before, "arguments": [listed(argument) for argument in arguments], "status": done.returncode,
            "stdout": listed(done.stdout), "stderr": listed(done.stderr)}
    if after != before:
        case["after"] = after
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", help="a copy of the script; default: it is fetched")
    parser.add_argument("--out", default=ANSWERS)
    given = parser.parse_args()
    if given.script:
        script = pathlib.Path(given.script).read_bytes()
    else:
        with urllib.request.urlopen(URL) as answer:
            script = answer.read()
    digest = hashlib.sha256(script).hexdigest()
    if digest != SHA256:
        sys.exit(f"the script's sha256 is {digest}, not {SHA256}: it is another version")
    if sys.version_info[:2] != (3, 11):
        sys.exit("answers are those of Python 3.11: run this with python3.11")
    lines = [json.dumps(recorded(script.decode(), *case)) for case in cases()]
    pathlib.Path(given.out).write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} answers in {given.out}")


if __name__ == "__main__":
    main()

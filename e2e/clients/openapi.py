"""schemathesis on the description that a gateway gives of its own API: `openapi.py GATEWAY FOLDER`. About a minute; the same calls every time."""

import pathlib
import subprocess
import sys

gateway, folder = sys.argv[1:]
program = pathlib.Path(sys.executable).with_name("st")
config = pathlib.Path(__file__).with_name("schemathesis.toml")
command = [program, "--config-file", config, "run", f"{gateway}/openapi.json", "--seed", "1", "--generation-database", "none"]
sys.exit(subprocess.run(command, cwd=folder).returncode)

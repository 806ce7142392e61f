"""Reads the vLLM command lines in golden files with vLLM's own parser. A flag it does not know ends the program with its words."""

import sys

import yaml
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

read = 0
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        objects = [each for each in yaml.safe_load_all(file) if each["kind"] == "Pod"]
    for pod in objects:
        for container in pod["spec"]["containers"]:
            if container.get("command") != ["vllm", "serve"]:
                continue
            parser = make_arg_parser(FlexibleArgumentParser())
            parsed = parser.parse_args(container["args"])
            assert parsed.logprobs_mode == "processed_logprobs", parsed
            assert parsed.host == "127.0.0.1", parsed
            print(f"{pod['metadata']['name']}: {len(container['args'])} arguments are understood")
            read += 1
assert read > 0, "no vLLM pod was found"

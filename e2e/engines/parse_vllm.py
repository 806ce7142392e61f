"""Reads the vLLM command lines in golden files with vLLM's own parser. A flag it does not know ends the program with its words."""

import contextlib
import io
import sys

import vllm
from golden import command_lines
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

COMMAND = ["vllm", "serve"]


def refuses(parser) -> bool:
    """Whether the parser is a real one: it must refuse a flag that does not exist."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parser.parse_args(["--no-such-flag"])
    except SystemExit:
        return True
    return False


def main(paths: list[str]) -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    known = {flag for action in parser._actions for flag in action.option_strings}
    assert refuses(parser), "the parser takes anything"
    read = 0
    for name, arguments in command_lines(paths, COMMAND):
        parsed = parser.parse_args(arguments)
        validate_parsed_serve_args(parsed)
        engine = AsyncEngineArgs.from_cli_args(parsed)
        assert engine.logprobs_mode == "processed_logprobs" and engine.generation_config == "vllm", engine
        assert parsed.host == "127.0.0.1" and parsed.served_model_name == ["policy"], parsed
        # vLLM ends when a pod without a server is told to start one.
        assert not (parsed.headless and parsed.api_server_count), parsed
        # argparse takes a beginning of a flag for the flag, until another one begins alike.
        short = [each for each in arguments if each.startswith("--") and each.split("=")[0] not in known]
        assert not short, f"{name}: {short} are not spelt out"
        print(f"{name}: {len(arguments)} arguments are understood")
        read += 1
    assert read > 0, "no command line of vLLM was found"
    print(f"vLLM {vllm.__version__}: {read} command lines, {len(known)} flags known")


if __name__ == "__main__":
    main(sys.argv[1:])

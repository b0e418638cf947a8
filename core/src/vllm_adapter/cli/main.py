"""The command line's frame: finds a command, parses, runs, and turns errors into sentences.

A command is an entry point of group `vllm_adapter.commands` that names a module with

    HELP: str                                   one line, for the overview
    EXAMPLE: str                                shown at the end of its --help
    PASSES_ON: bool                             words behind -- are args.passed_on, not parsed
    def add_arguments(parser) -> None
    def run(args) -> int                        0 ok, 1 bad news, 2 bad input or environment

Only the chosen command's module is imported; the overview reads HELP from the source, where it
is a plain text. These modules are cheap: what is heavy they import inside `run`. The frame gives
every command `--json` and `--debug`, and itself catches every VllmAdapterError.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from vllm_adapter import __version__
from vllm_adapter.cli import owners, streams
from vllm_adapter.cli.output import clean, error_line, warn
from vllm_adapter.contract.operators import operator
from vllm_adapter.discovery.distributions import EntryPoint, entry_points
from vllm_adapter.discovery.entry_files import let_torch_be_imported
from vllm_adapter.errors import InputError, VllmAdapterError
from vllm_adapter.settings import Settings

GROUP: Final = "vllm_adapter.commands"
PROGRAM: Final = "vllm-adapter"
_WIDEST: Final = 24
"""Columns for the names of commands; a longer one moves its own line alone."""
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
"""What a shell reports for a program that SIGPIPE ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default `sys.argv[1:]`); gives the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    streams.prepare()
    debug = "--debug" in words
    try:
        with streams.warnings_as_sentences():
            code = _dispatch(words)
        sys.stdout.flush()
    except VllmAdapterError as error:
        if debug:
            traceback.print_exc()
        error_line(error.message, error.code, error.hint)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        streams.drop_stdout()
        return PIPE_CLOSED
    except OSError as error:
        if not streams.stdout_fails(error):
            raise
        streams.drop_stdout()
        hint = "make room, or send the output somewhere else"
        error_line(f"the output cannot be written: {error.strerror}", InputError.code, hint)
        return 2
    return code


def _dispatch(words: list[str]) -> int:
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    commands = find_commands()
    _options(words[:at], commands)
    if at == len(words):
        print(_overview(commands), end="")
        return 0
    name = words[at]
    if name not in commands:
        raise _unknown(name, commands)
    module = _load(commands[name])
    parser = _Parser(
        prog=f"{PROGRAM} {name}",
        description=" ".join(filter(None, (module.HELP, owners.mark(commands[name])))),
        epilog=getattr(module, "EXAMPLE", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    module.add_arguments(parser)
    own, passed_on = words[at + 1 :], None
    if getattr(module, "PASSES_ON", False) and "--" in own:
        end = own.index("--")
        own, passed_on = own[:end], own[end + 1 :]
    args = parser.parse_args(own)
    parser.refuse_empty(args)
    args.passed_on = tuple(passed_on or ())
    settings = Settings.from_environ()
    for op in settings.ops:
        operator(op)
    for sentence in settings.warnings():
        warn(sentence)
    let_torch_be_imported()
    return int(module.run(args))


def find_commands() -> dict[str, EntryPoint]:
    """Every installed command by name, sorted; says which are left out, and of which package."""
    commands, left_out = owners.commands(entry_points(GROUP))
    for sentence in left_out:
        warn(sentence)
    return commands


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the command {point.name} cannot be loaded: {type(error).__name__}: {error}",
            hint=f"reinstall the package that brings {point.value}",
        ) from error


def _options(words: Sequence[str], commands: Mapping[str, EntryPoint]) -> None:
    """The options before the command's name."""
    parser = _Parser(prog=PROGRAM, add_help=False)
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument("-h", "--help", action="store_true")
    if parser.parse_args(words).help:
        print(_overview(commands), end="")
        raise SystemExit(0)


def _overview(commands: Mapping[str, EntryPoint]) -> str:
    from vllm_adapter.cli.command_help import help_line

    lines = [f"usage: {PROGRAM} [--version] [--debug] COMMAND ...", "", "commands:"]
    width = min(max(map(len, commands), default=0), _WIDEST)
    for name, point in commands.items():
        line = f"  {clean(name):<{width}}  {help_line(point)} {clean(owners.mark(point))}"
        lines.append(line.rstrip())
    lines += ["", f"{PROGRAM} COMMAND --help shows its options and an example.", ""]
    return "\n".join(lines)


def _unknown(name: str, commands: Mapping[str, EntryPoint]) -> InputError:
    if name in owners.OWNERS:
        return InputError(
            f"the command {name} is not installed", hint=f"pip install {owners.OWNERS[name]}"
        )
    near = difflib.get_close_matches(name, commands, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return InputError(
        f"there is no command {name!r}", hint=f"{meant}the commands are: {', '.join(commands)}"
    )


class _Parser(argparse.ArgumentParser):
    """Reports bad arguments as the frame reports every error."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, hint=f"see {self.prog} --help")

    def refuse_empty(self, args: argparse.Namespace) -> None:
        """An empty text would be read as the present folder; what is passed on is let be."""
        for action in self._actions:
            value = getattr(args, action.dest, None)
            texts = value if isinstance(value, list) else [value]
            if "" in texts and action.nargs != argparse.REMAINDER:
                name = action.option_strings[-1] if action.option_strings else action.metavar
                self.error(f"the argument {name} is empty")

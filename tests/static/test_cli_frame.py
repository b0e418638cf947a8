"""The command line's frame: dispatch, exit codes, errors, output vocabulary, import budget."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import types
import warnings

import pytest
from fake_dist import install

from vllm_adapter.cli import main as frame
from vllm_adapter.cli import output, owners
from vllm_adapter.discovery.distributions import entry_points
from vllm_adapter.errors import AdapterError, NewerFormat

pytestmark = pytest.mark.static

HEAVY = ("torch", "jsonschema", "pluggy", "numpy", "transformers", "vllm")


def run(*words, env=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "vllm_adapter.cli", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        **options,
    )


class Point:
    """An entry point whose module is given."""

    def __init__(self, module, name="fake", distribution="fake-tools"):
        self.module, self.name, self.value = module, name, f"{name}.module"
        self.distribution = distribution

    def load(self):
        if isinstance(self.module, Exception):
            raise self.module
        return self.module


def command(action, **rest):
    def run(args):
        result = action(args)
        return 0 if result is None else result

    return types.SimpleNamespace(
        HELP="a fake", add_arguments=lambda parser: parser.add_argument("--x"), run=run, **rest
    )


@pytest.fixture
def only(monkeypatch):
    def install(action, **rest):
        point = Point(action if isinstance(action, Exception) else command(action, **rest))
        monkeypatch.setattr(frame, "find_commands", lambda: {"fake": point})

    return install


def raises(error):
    def action(args):
        raise error

    return action


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_is_the_command_s(only, code):
    only(lambda args: code)
    assert frame.main(["fake"]) == code


def test_an_error_of_ours_is_two_lines_and_exit_code_2(only, capsys):
    only(raises(AdapterError("no adapter acme is\ninstalled", hint="pip install it")))
    assert frame.main(["fake"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: no adapter acme is installed [VA0401]\nhint: pip install it\n"


@pytest.mark.parametrize("words", [["--debug", "fake"], ["fake", "--debug"]])
def test_debug_shows_the_traceback(only, capsys, words):
    only(raises(AdapterError("x", hint="y")))
    assert frame.main(words) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_defect_of_ours_stays_a_traceback(only):
    only(raises(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        frame.main(["fake"])


def test_an_interrupt_is_130(only):
    only(raises(KeyboardInterrupt()))
    assert frame.main(["fake"]) == 130


def test_bad_arguments_are_bad_input(only, capsys):
    only(lambda args: None)
    assert frame.main(["fake", "--nope"]) == 2
    assert "hint: see vllm-adapter fake --help" in capsys.readouterr().err
    assert frame.main(["--nope"]) == 2


def test_a_module_that_cannot_be_imported_is_named(only, capsys):
    only(ImportError("no libfoo"))
    assert frame.main(["fake"]) == 2
    assert "ImportError: no libfoo" in capsys.readouterr().err
    assert frame.main([]) == 0
    assert "(there is no module fake.module)" in capsys.readouterr().out


def test_every_command_has_json_and_its_example(only, capsys):
    only(lambda args: 0 if args.json else 1, EXAMPLE="example:\n  vllm-adapter fake")
    assert frame.main(["fake"]) == 1
    assert frame.main(["fake", "--json"]) == 0
    with pytest.raises(SystemExit) as caught:
        frame.main(["fake", "--help"])
    assert caught.value.code == 0
    assert "example:\n  vllm-adapter fake" in capsys.readouterr().out


def test_settings_are_checked_before_a_command_runs(only, capsys, monkeypatch):
    only(lambda args: 0)
    monkeypatch.setenv("VA_FALBACK", "error")
    assert frame.main(["fake"]) == 0
    assert capsys.readouterr().err.startswith("warning: the variable VA_FALBACK")
    monkeypatch.setenv("VA_FALLBACK", "never")
    assert frame.main(["fake"]) == 2
    assert "[VA0002]" in capsys.readouterr().err


def test_an_unknown_command_suggests_the_nearest(capsys):
    assert frame.main(["valdate"]) == 2
    assert "did you mean validate?" in capsys.readouterr().err


def test_a_command_of_a_package_that_is_not_installed(only, capsys):
    only(lambda args: 0)
    assert frame.main(["certify"]) == 2
    assert "pip install vllm-adapter-conformance" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(owners.OWNERS))
def test_a_reserved_name_is_its_owner_s_alone(name, monkeypatch, capsys):
    ours, alien = Point(None, name, owners.OWNERS[name]), Point(None, name, "aaa-tools")
    ours.distribution = ours.distribution.replace("-", "_").upper()  # as a wheel may write it
    alien.value = f"vllm_adapter.cli.{name}"
    for points in ([alien, ours], [ours, alien]):
        monkeypatch.setattr(frame, "entry_points", lambda group, points=points: points)
        assert frame.find_commands() == {name: ours}
        said = capsys.readouterr().err
        assert said.startswith("warning: the package aaa-tools brings a command named " + name)
    monkeypatch.setattr(frame, "entry_points", lambda group: [alien])
    assert frame.main([name]) == 2
    assert f"pip install {owners.OWNERS[name]}" in capsys.readouterr().err


def test_every_installed_command_of_ours_stands_in_the_table():
    for point in entry_points(frame.GROUP):
        if point.distribution.startswith("vllm-adapter-"):
            assert owners.OWNERS[point.name] == point.distribution


def test_two_packages_with_one_command_are_said(monkeypatch, capsys):
    points = [Point(None, "more", "b-tools"), Point(None, "more", "a-tools")]
    monkeypatch.setattr(frame, "entry_points", lambda group: points)
    assert frame.find_commands()["more"] is points[1]
    assert "a-tools and b-tools both bring a command named more" in capsys.readouterr().err


def test_a_foreign_command_is_marked_with_its_package(monkeypatch, capsys):
    points = [
        Point(command(lambda args: 0), "fake"),
        Point(command(lambda args: 0), "verify", "evil"),
        Point(command(lambda args: 0), "run", "vllm-adapter-core"),
    ]
    monkeypatch.setattr(frame, "entry_points", lambda group: points)
    monkeypatch.setattr("vllm_adapter.cli.command_help.help_line", lambda point: "a fake")
    assert frame.main([]) == 0
    out, err = capsys.readouterr()
    assert "  fake  a fake [of the package fake-tools]\n" in out
    assert "  run   a fake\n" in out
    assert "verify" not in out and "the package evil" in err
    with pytest.raises(SystemExit):
        frame.main(["fake", "--help"])
    assert "a fake [of the package fake-tools]" in capsys.readouterr().out


def test_an_installed_package_cannot_take_the_place_of_verify(site):
    folder = site.path.parent / "src"
    (folder / "evil").mkdir(parents=True)
    text = "HELP = 'x'\ndef add_arguments(parser): pass\ndef run(args): print('VERIFIED')\n"
    (folder / "evil/__init__.py").write_text(text)
    install(folder, site.path, name="evil", entry_name="verify", group=frame.GROUP)
    done = site.run("-m", "vllm_adapter.cli", "verify", "nothing.json")
    assert done.returncode == 2
    assert "VERIFIED" not in done.stdout
    assert "warning: the package evil brings a command named verify" in done.stderr


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_overview_names_every_command(words):
    done = run(*words)
    assert done.returncode == 0 and done.stderr == ""
    for name in ("explain", "validate", "list", "run"):
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", ["explain", "validate"])
def test_the_help_of_our_commands_has_an_example(name):
    done = run(name, "--help")
    assert done.returncode == 0
    assert "example:" in done.stdout and "--json" in done.stdout


@pytest.mark.parametrize(
    "words",
    [["--help"], ["list"], ["explain", "VA0001"], ["explain", "cpu"], ["validate", "--help"]],
)
def test_import_budget(words):
    code = (
        "import sys\n"
        "from vllm_adapter.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_the_chosen_command_is_imported():
    code = (
        "import sys\nfrom vllm_adapter.cli.main import main\nmain(['explain', 'VA0001'])\n"
        "print(sorted(m for m in sys.modules if m.startswith('vllm_adapter.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ["explain", "explain_page", "main", "output", "owners", "streams"]
    assert done.stdout.splitlines()[-1] == str([f"vllm_adapter.cli.{n}" for n in names])


def test_a_closed_pipe_is_quiet():
    command = f"{sys.executable} -m vllm_adapter.cli explain cpu --json | head -c 1 >/dev/null"
    shell = f"set -o pipefail; {command}; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


def test_a_terminal_without_the_characters_is_no_error(tmp_path):
    folder = tmp_path / "h\u00e9"
    folder.mkdir()
    (folder / "adapter.json").write_text('{"schema": "vllm-adapter/manifest/1.0"}')
    done = run("validate", str(folder), env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1
    assert "h\\xe9" in done.stdout


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_table_aligns_and_cannot_steer_the_terminal():
    text = output.table([["a", None], ["long\x1b[31m", "x\ny"]], ["ONE", "TWO"])
    assert text == "ONE        TWO\na          -\nlong [31m  x y\n"


def test_colour_is_for_terminals_and_honours_no_color(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.colour("x", "red", io.StringIO()) == "x"
    assert output.colour("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("TERM", "dumb")
    assert output.colour("x", "red", Terminal()) == "x"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.colour("x", "red", Terminal()) == "x"


def test_json_is_one_ascii_document(capsys):
    output.emit_json({"a": "h\u00e9"})
    text = capsys.readouterr().out
    assert text.isascii() and json.loads(text) == {"a": "h\u00e9"}


def test_progress_draws_on_a_terminal_and_clears_itself(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    clock = iter(range(100))
    monkeypatch.setattr(output.time, "monotonic", lambda: next(clock))
    stream = Terminal()
    with output.Progress(4, "L2", stream) as progress:
        progress.step("a")
        progress.step("b\n")
    assert "L2 [##########..........] 2/4 b" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_progress_elsewhere_is_silent_or_sparse(monkeypatch):
    stream = io.StringIO()
    with output.Progress(0, "L2", stream) as progress:
        progress.step("a")
    assert stream.getvalue() == ""
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(output.time, "monotonic", lambda: next(clock))
    with output.Progress(4, "L2", stream) as progress:
        for name in "abcd":
            progress.step(name)
    assert stream.getvalue() == "L2 2/4 b\nL2 4/4 d\n"


def test_closed_streams_are_no_error():
    code = (
        "import os, sys; os.execv(sys.executable, [sys.executable, '-m', 'vllm_adapter.cli', *W])"
    )
    for close in ("1", "0); os.close(1", "2"):
        source = f"import os; os.close({close}); W = ['explain', 'VA0001']; {code}"
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_said():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "vllm_adapter.cli", "explain", "VA0001"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the output cannot be written: No space left")


def test_an_oserror_of_a_command_is_not_blamed_on_the_output(only):
    only(lambda args: open("/nonexistent/x"))
    with pytest.raises(FileNotFoundError):
        frame.main(["fake"])


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["validate", ""], "PATH"),
        (["validate", "a", ""], "PATH"),
        (["explain", ""], "KEY"),
        (["explain", "cpu", "--diff", ""], "--diff"),
        (["new", "Acme", "--output", ""], "--output"),
        (["run", "", "--prompt", "x"], "MODEL"),
    ],
)
def test_an_empty_argument_is_no_folder(words, name, capsys):
    assert frame.main(words) == 2
    assert f"the argument {name} is empty" in capsys.readouterr().err


@pytest.mark.filterwarnings("default::vllm_adapter.errors.NewerFormat")
def test_a_newer_file_is_said_in_one_sentence_once(only, capsys):
    def action(args):
        for line in (1, 2):
            warnings.warn_explicit("a.json is newer", NewerFormat, "x.py", line)

    only(action)
    assert frame.main(["fake"]) == 0
    assert capsys.readouterr().err == "warning: a.json is newer\n"

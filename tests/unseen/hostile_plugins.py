"""Installed packages that are hostile once something of them is imported."""

from __future__ import annotations

from unseen.hostile_packages import EITHER, Hostile, dist, named_dist, package

HOOK = """
import os, signal, sys, threading, time, atexit
from vllm_adapter.contract.hookspecs import hookimpl
{top}

class Plugin:
    @hookimpl
    def probe(self):
        {body}
"""


def plugin(name, body="return None", *, top="", case=None, why=()):
    """A plug-in: `top` is run at its import, `body` in its probe."""

    def make(site):
        package(site, plugin=HOOK.format(top=top, body=body.replace("\n", "\n        ")))
        dist(site)

    return Hostile(f"plug-in: {name}", make, reason=why, **(case or BAD))


def raw(name, source, *why):
    """A plug-in module with this text and nothing else."""

    def make(site):
        package(site, plugin=source)
        dist(site)

    return Hostile(f"plug-in: {name}", make, reason=why, **BAD)


BAD = named_dist(("broken",), (1,))
HANG = ("within", "second", "hang", "answer", "time")
CONSTRUCTOR = """
class Plugin:
    def __init__(self):
        raise OSError("no driver")
"""


def three_that_hang(site):
    for one in ("slow1", "slow2", "slow3"):
        package(site, one, plugin=HOOK.format(top="", body="time.sleep(3600)"))
        dist(site, one)


def several_of_each(site):
    """A shelf of bad ones: each is named, and none hides another."""
    for one, body in {
        "one": "os._exit(0)",
        "two": "os.abort()",
        "six": "raise ValueError",
    }.items():
        package(site, one, plugin=HOOK.format(top="", body=body))
        dist(site, one)


FORKS = """
for _ in range(5):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
"""
STAYS = """
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
    os._exit(0)
"""
THREAD = "threading.Thread(target=time.sleep, args=(3600,)).start()"
ALL_FDS = """
for fd in range(0, 64):
    try:
        os.write(fd, b'["end", "cpu", {}]\\\\n' * 50)
    except OSError:
        pass
"""
FLOOD = "for _ in range(3000): os.write({fd}, b'x' * 65535 + b'\\\\n')"
DEAF = "for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)"
LONG_TEXT = "raise ValueError('y' * 20_000_000)"
BAD_TEXT = """
class Nasty(Exception):
    def __str__(self):
        raise RuntimeError('no text')
    __repr__ = __str__
raise Nasty()
"""
PLUGINS = [
    plugin(
        "hangs in its import",
        top="time.sleep(3600)",
        why=HANG,
    ),
    plugin(
        "hangs, deaf to signals",
        f"{DEAF}\nwhile True: time.sleep(1)",
        why=HANG,
    ),
    plugin("spins", "while True: pass", why=HANG),
    plugin(
        "stops itself",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        why=HANG,
    ),
    Hostile(
        "plug-in: three that hang",
        three_that_hang,
        named=("slow1", "slow2", "slow3"),
        status=("broken",),
        reason=("within", "second", "time", "hang"),
    ),
    Hostile(
        "plug-in: three of other kinds",
        several_of_each,
        named=("one", "two", "six"),
        status=("broken",),
    ),
    plugin("ends with code 0 at import", top="os._exit(0)", why=("exit", "end", "code")),
    plugin(
        "sys.exit at import",
        top="sys.exit('OWNED?')",
        why=("exit",),
        case=BAD | {"unsaid": ("Traceback",)},
    ),
    plugin(
        "KeyboardInterrupt",
        "raise KeyboardInterrupt",
        why=("interrupt", "sigint"),
    ),
    plugin("an exception without text", BAD_TEXT, why=("nasty", "exit code")),
    plugin(
        "an exception of 20 MB",
        LONG_TEXT,
        why=("valueerror",),
        case=BAD | {"unsaid": ("y" * 20_000,)},
    ),
    plugin(
        "an exception with escapes", "raise ValueError('\\x1b[2J\\x1b[31m')", why=("valueerror",)
    ),
    plugin("kills itself", "os.kill(os.getpid(), signal.SIGKILL)", why=("kill", "signal", "died")),
    plugin("aborts", "os.abort()", why=("abort", "abrt", "signal")),
    plugin(
        "SIGTERM to its parent",
        "os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(1)",
        case=EITHER,
    ),
    plugin(
        "SIGINT to its parent", "os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(1)", case=EITHER
    ),
    plugin(
        "SIGHUP to its parent", "os.kill(os.getppid(), signal.SIGHUP)\ntime.sleep(1)", case=EITHER
    ),
    plugin("SIGTERM to its group", "os.killpg(0, signal.SIGTERM)\ntime.sleep(1)"),
    plugin(
        "SIGKILL to its parent",
        "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(1)",
        case=EITHER,
    ),
    plugin("forks sleepers", FORKS, case=EITHER),
    plugin("leaves a daemon with its pipes", STAYS, case=EITHER),
    plugin("forks and both go on", "os.fork()", case=EITHER),
    plugin("a thread that never ends", THREAD, case=EITHER),
    plugin("hangs at exit", "atexit.register(time.sleep, 3600)", case=EITHER),
    plugin("another code at exit", "atexit.register(os._exit, 7)", case=EITHER),
    plugin("200 MB on stdout", FLOOD.format(fd=1), case=EITHER),
    plugin("200 MB on stderr", FLOOD.format(fd=2), case=EITHER | {"unsaid": ("x" * 20_000,)}),
    plugin("writes on every descriptor", ALL_FDS, case=EITHER),
    plugin("closes every descriptor", "os.closerange(0, 64)", case=EITHER),
    plugin("sys.stdout is None", "sys.stdout = sys.stderr = None", case=EITHER),
    plugin("patches json", "import json\njson.dumps = lambda *a, **k: 'OWNED'", case=EITHER),
    plugin("empties sys.modules", "sys.modules.clear()", case=EITHER),
    plugin("deep recursion", "f = lambda: f()\nf()", why=("recursion",)),
    plugin(
        "eats memory",
        "x = [bytearray(64 << 20) for _ in range(4096)]",
        why=("memory", "signal", "kill", *HANG),
    ),
    plugin("goes elsewhere", "os.chdir('/')\nos.environ.clear()\nos.umask(0o777)", case=EITHER),
    plugin("answers with a text", "return 'cuda'", why=("probe",)),
    plugin("answers with numbers", "return [1, 2, 3]", why=("probe",)),
    plugin(
        "answers without end",
        "import itertools\nreturn itertools.count()",
        why=("probe", "within", "second"),
    ),
    raw("Plugin is a number", "Plugin = 7\n", "class", "plug-in"),
    plugin("syntax error", top="def (", why=("syntax",)),
    raw("constructor raises", CONSTRUCTOR, "oserror", "no driver"),
]

HEAD = 'HELP = "a foreign command"\n'
REST = """
def add_arguments(parser):
    parser.add_argument("rest", nargs="*")

def run(arguments):
    print("OWNED")
    return 0
"""


def command(name, source, entry="greet", *, doctor=(0, 1), **case):
    """A package that brings a command."""

    def make(site):
        (site / "villain_command.py").write_text(source, encoding="utf-8")
        line = f"[vllm_adapter.commands]\n{entry} = villain_command\n"
        dist(site, entries=line.encode())

    given = {"named": (), "status": (), "doctor": doctor, "helped": ("villain",)} | case
    return Hostile(f"command: {name}", make, **given)


COMMANDS = [
    command("ends the process", "import os\nos._exit(0)\n"),
    command("sys.exit at import", "import sys\nsys.exit(0)\n"),
    command("raises at import", "raise ValueError('bad table')\n"),
    command("hangs at import", "import time\ntime.sleep(3600)\n"),
    command("kills at import", "import os\nos.kill(os.getpid(), 9)\n"),
    command("prints at import", "print('OWNED')\n" + HEAD + REST, helped=()),
    command("has no HELP", REST),
    command("HELP is a number", "HELP = 7\n" + REST, helped=("villain", "greet")),
    command(
        "HELP with escapes", 'HELP = "\\x1b[2J\\x1b[31mred"\n' + REST, helped=("villain", "greet")
    ),
    command(
        "HELP of 1 MB",
        'HELP = "z" * 1_000_000\n' + REST,
        unsaid=("z" * 20_000, "OWNED"),
        helped=("villain", "greet"),
    ),
    command(
        "HELP has a percent sign",
        'HELP = "100% %(prog)s %d"\n' + REST,
        helped=("villain", "greet"),
    ),
    command("module is not there", "", entry="other = nowhere.at.all\ngreet"),
    command("a foreign one, healthy", HEAD + REST, helped=("villain",)),
    command("replaces verify", HEAD + REST, entry="verify"),
    command("replaces certify", HEAD + REST, entry="certify"),
    command("replaces list", HEAD + REST, entry="list"),
    command("replaces doctor", HEAD + REST, entry="doctor"),
    command("name begins with a dash", HEAD + REST, entry="--version"),
    command("name with a space", HEAD + REST, entry="list all"),
]

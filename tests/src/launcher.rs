//! `urxe run` as an ordinary user of a machine without urxe, from a copy of the two files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::artifacts;
use crate::copy::copy_program;
use crate::infiniband::patience;
use crate::process::{Finished, TIMEOUT};
use crate::world::{Host, World};

/// Becomes `nobody` (65534), without any privilege.
const AS_NOBODY: [&str; 7] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--"];

/// A machine on which urxe is two files, and a user without rights.
#[derive(Debug)]
pub struct Launcher {
    world: World,
    dir: PathBuf,
    /// Words in front of every command.
    user: Vec<String>,
}

impl Launcher {
    /// The two files in a folder of the world, and a folder for temporary files that everybody may use.
    pub fn new() -> Result<Self> {
        let world = World::bare()?;
        let dir = world.dir().join("two files");
        let tmp = world.dir().join("tmp");
        for (path, mode) in [(world.dir(), 0o755), (&dir, 0o755), (&tmp, 0o1777)] {
            if !path.is_dir() {
                fs::create_dir(path)?;
            }
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        for name in ["urxe", "liburxe.so"] {
            copy_program(artifacts::bin_dir()?.join(name), dir.join(name))?;
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755))?;
        }
        world.host().set_env("TMPDIR", tmp.to_str().context("a path that is not UTF-8")?);
        // A home that can be written to: Open MPI wants one.
        world.host().set_env("HOME", tmp.to_str().context("a path that is not UTF-8")?);
        // Without folders that only the tester may enter.
        world.host().set_env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        // SAFETY: `geteuid` has no preconditions.
        let root = unsafe { libc::geteuid() } == 0;
        // Otherwise the world is a user namespace, with nobody else to become: this user has no rights outside.
        let user = if root { AS_NOBODY.map(str::to_owned).to_vec() } else { Vec::new() };
        Ok(Self { world, dir, user })
    }

    /// Launcher where user namespaces cannot be made, neither by the user nor by what it starts.
    pub fn without_user_namespaces() -> Result<Self> {
        let mut launcher = Self::new()?;
        let forbid = "if unshare --user --map-root-user true 2>/dev/null; then \
                        exec unshare --user --map-root-user sh -c \
                          'echo 0 >/proc/sys/user/max_user_namespaces && exec \"$@\"' sh \"$@\"; \
                      else exec \"$@\"; fi";
        launcher.user.extend(["sh", "-c", forbid, "sh"].map(str::to_owned));
        Ok(launcher)
    }

    /// The world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// First host of the world, where commands run.
    pub fn host(&self) -> &Host {
        self.world.host()
    }

    /// The command `urxe`.
    pub fn urxe(&self) -> PathBuf {
        self.dir.join("urxe")
    }

    /// Folder of the user's temporary files.
    pub fn tmp(&self) -> PathBuf {
        self.world.dir().join("tmp")
    }

    /// A command of the user's.
    pub fn plain(&self, words: &[&str]) -> Command {
        self.plain_on(self.host(), words)
    }

    fn plain_on(&self, host: &Host, words: &[&str]) -> Command {
        let mut words = self.user.iter().map(String::as_str).chain(words.iter().copied());
        let mut command = host.command(words.next().unwrap_or("true"));
        command.args(words);
        command
    }

    /// `urxe run OPTIONS -- WORDS`, by the user.
    pub fn command(&self, options: &[&str], words: &[&str]) -> Result<Command> {
        self.command_on(self.host(), options, words)
    }

    /// `urxe run OPTIONS -- WORDS` on a host of the world, by the user.
    pub fn command_on(&self, host: &Host, options: &[&str], words: &[&str]) -> Result<Command> {
        let urxe = self.urxe();
        let urxe = utf8(&urxe)?;
        let (program, args) = words.split_at(words.len().min(1));
        Ok(self.plain_on(host, &[&[urxe, "run"], options, &["--"], program, patience(program), args].concat()))
    }

    /// Runs `urxe run -- WORDS` to its end.
    pub fn try_run(&self, options: &[&str], words: &[&str]) -> Result<Finished> {
        self.host().start(self.command(options, words)?)?.finish(TIMEOUT)
    }

    /// Runs `urxe run -- WORDS` to its successful end.
    pub fn run(&self, words: &[&str]) -> Result<Finished> {
        self.try_run(&[], words)?.success()
    }

    /// Runs a script of the shell's.
    pub fn sh(&self, script: &str) -> Result<Finished> {
        self.run(&["sh", "-ec", script])
    }

    /// Runs a script of Python's, the system's own.
    pub fn python(&self, script: &str) -> Result<Finished> {
        self.run(&["/usr/bin/python3", "-c", script])
    }
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}

//! Several copies of libibverbs in one process: each finds the device, under its own private ABI. Wheels and other bundles
//! bring a libibverbs under a name of its own, beside the one that the system's libraries load. (Copies of other releases:
//! `make distributions`.)

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Host, Launcher, TIMEOUT, World, artifacts, write_program};

/// How the system calls the library.
const SYSTEM: &str = "libibverbs.so.1";

/// Name of a bundled copy: as many letters, since the name is replaced inside of files.
const BUNDLED: &str = "libibverbs-b.so";

/// A bundle in a folder: `libibverbs-b.so` and a program that uses copies.
struct Bundle {
    program: String,
    copy: String,
}

impl Bundle {
    fn new(dir: &Path) -> Result<Self> {
        let program = dir.join("copies");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/libibverbs_copies.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-O1", "-o"]).arg(&program).arg(source);
        ensure!(compiler.status()?.success(), "cc failed");
        let copy = renamed(&library(SYSTEM)?, dir, SYSTEM, BUNDLED)?;
        Ok(Self { program: text(&program)?, copy: text(&copy)? })
    }

    /// The words of the program: when copies are loaded, and which, in which order.
    fn words<'a>(&'a self, when: &'a str, copies: [&'a str; 2]) -> [&'a str; 4] {
        [&self.program, when, copies[0], copies[1]]
    }

    /// Runs it in every order.
    fn run_all(&self, run: impl Fn(&[&str]) -> Result<String>) -> Result<()> {
        for when in ["together", "later"] {
            for copies in [[SYSTEM, &self.copy], [&self.copy, SYSTEM]] {
                let words = self.words(when, copies);
                let said = run(&words).with_context(|| words.join(" "))?;
                ensure!(said == "exchanged 0 0\nexchanged 1 0\nexchanged 1 1\n", "{words:?}: {said}");
            }
        }
        Ok(())
    }

    fn run_all_installed(&self, host: &Host) -> Result<()> {
        self.run_all(|words| {
            let finished = host.run(words[0], &words[1..])?;
            ensure!(finished.stderr.is_empty(), "not silent: {finished}");
            Ok(finished.stdout)
        })
    }
}

fn text(path: &Path) -> Result<String> {
    Ok(path.to_str().context("a path that is not UTF-8")?.to_owned())
}

/// Path at which the loader finds a library.
fn library(name: &str) -> Result<PathBuf> {
    let cache = Command::new("/sbin/ldconfig").arg("-p").output()?;
    let cache = String::from_utf8_lossy(&cache.stdout).into_owned();
    let line = cache.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
    Ok(PathBuf::from(line.and_then(|line| line.split("=> ").nth(1)).with_context(|| format!("no {name}"))?))
}

/// A copy of a file in which one name stands in the place of another of the same length, called by that name.
fn renamed(file: &Path, dir: &Path, from: &str, to: &str) -> Result<PathBuf> {
    let copy = dir.join(to);
    replaced(file, &copy, from, to)?;
    Ok(copy)
}

fn replaced(file: &Path, copy: &Path, from: &str, to: &str) -> Result<()> {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(file)?;
    let places: Vec<usize> = bytes
        .windows(from.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == from.as_bytes())
        .map(|(at, _)| at)
        .collect();
    ensure!(!places.is_empty(), "no {from} in {}", file.display());
    for at in places {
        bytes.get_mut(at..at + to.len()).context("past the end")?.copy_from_slice(to.as_bytes());
    }
    write_program(copy, bytes)
}

#[test]
fn under_urxe_run() -> Result<()> {
    let launcher = Launcher::new()?;
    let bundle = Bundle::new(launcher.world().dir())?;
    bundle.run_all(|words| {
        let finished = launcher.run(words)?;
        ensure!(finished.stderr.is_empty(), "not silent: {finished}");
        Ok(finished.stdout)
    })
}

#[test]
fn installed() -> Result<()> {
    let world = World::new()?;
    Bundle::new(world.dir())?.run_all_installed(world.host())
}

/// Only the driver file names the provider: copies that look in the same folder.
#[test]
fn installed_with_a_driver_file_alone() -> Result<()> {
    let world = World::new()?;
    let bundle = Bundle::new(world.dir())?;
    bundle.run_all(|words| {
        let mut command = world.host().command(words[0]);
        command.args(&words[1..]).env_remove("IBV_DRIVERS");
        Ok(world.host().start(command)?.finish(TIMEOUT)?.success()?.stdout)
    })
}

#[test]
fn installed_below_a_prefix() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let prefix = text(&world.dir().join("p"))?;
    host.run(artifacts::urxe()?, &["install", "--prefix", &prefix])?;
    // What is left of the machine's own installation is /dev/infiniband.
    host.run("rm", &["/etc/libibverbs.d/urxe.driver"])?;
    host.set_env("SYSFS_PATH", &format!("{prefix}/share/urxe/sysfs"));
    host.set_env("IBV_DRIVERS", &format!("{prefix}/lib/urxe/liburxe"));
    Bundle::new(world.dir())?.run_all_installed(host)
}

/// The folder for providers is compiled into a libibverbs: a bundle's is that of the machine which built it.
#[test]
fn a_copy_that_looks_in_another_folder() -> Result<()> {
    let world = World::new()?;
    let bundle = Bundle::new(world.dir())?;
    let format = "/lib%s-rdmav";
    let before = String::from_utf8_lossy(&fs::read(&bundle.copy)?).into_owned();
    let end = before.find(&format!("libibverbs{format}")).context("no folder for providers")? + "libibverbs".len();
    let start = before.get(..end).and_then(|before| before.rfind('\0')).context("no start")? + 1;
    let folder = before.get(start..end).context("no folder")?;
    let elsewhere = format!("/nowhere/{}", "x".repeat(folder.len() - "/nowhere/".len()));
    let copy = Path::new(&bundle.copy);
    replaced(copy, copy, folder, &elsewhere)?;
    bundle.run_all(|words| Ok(world.host().run(words[0], &words[1..])?.stdout))
}

/// dlmopen(3) and `RTLD_DEEPBIND` keep a copy away from preloaded libraries, not from drivers that it loads itself.
#[test]
fn copies_that_see_no_preloaded_library() -> Result<()> {
    const COUNT: &str = r#"#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *handle = argc > 1 ? dlmopen(LM_ID_NEWLM, "libibverbs.so.1", RTLD_NOW)
                            : dlopen("libibverbs.so.1", RTLD_NOW | RTLD_DEEPBIND);
    void **(*list)(int *) = handle ? (void **(*)(int *))dlsym(handle, "ibv_get_device_list") : NULL;
    int count = -1;
    if (list)
        list(&count);
    printf("%d\n", count);
}"#;
    let world = World::new()?;
    let (source, program) = (world.dir().join("count.c"), world.dir().join("count"));
    fs::write(&source, COUNT)?;
    ensure!(Command::new("cc").arg("-o").arg(&program).arg(&source).status()?.success(), "cc failed");
    let urxe = artifacts::urxe()?;
    let program = text(&program)?;
    for argument in [None, Some("another namespace")] {
        let words: Vec<&str> = [program.as_str()].into_iter().chain(argument).collect();
        ensure!(world.host().run(&program, &words[1..])?.stdout == "1\n", "installed: {argument:?}");
        // What docs/internals/abi-hooks.md says of `urxe run`.
        let mut command = world.host().command(&urxe);
        command.args(["run", "--"]).args(&words).env_remove("IBV_DRIVERS");
        let said = world.host().start(command)?.finish(TIMEOUT)?.success()?;
        ensure!(said.stdout == "0\n", "preloaded: {argument:?}: {said}");
    }
    Ok(())
}

/// Both preloaded and installed: two files of the same library, of which one serves the process.
#[test]
fn under_urxe_run_where_it_is_installed() -> Result<()> {
    let world = World::new()?;
    let urxe = artifacts::urxe()?;
    Bundle::new(world.dir())?.run_all(|words| {
        let finished = world.host().run(&urxe, &[&["run", "--"], words].concat())?;
        ensure!(finished.stderr.is_empty(), "not silent: {finished}");
        Ok(finished.stdout)
    })
}

/// A program that brings libibverbs and librdmacm along, under names of their own.
#[test]
fn a_librdmacm_of_another_name() -> Result<()> {
    let world = World::new()?;
    let dir = world.dir().join("bundle");
    fs::create_dir(&dir)?;
    renamed(&library(SYSTEM)?, &dir, SYSTEM, BUNDLED)?;
    let librdmacm = renamed(&library("librdmacm.so.1")?, &dir, "librdmacm.so.1", "librdmacm-b.so")?;
    replaced(&librdmacm, &librdmacm, SYSTEM, BUNDLED)?;
    let rping = dir.join("rping");
    replaced(Path::new("/usr/bin/rping"), &rping, SYSTEM, BUNDLED)?;
    replaced(&rping, &rping, "librdmacm.so.1", "librdmacm-b.so")?;
    let start = |host: &Host, side: &str| {
        let mut command = host.command(&rping);
        command.env("LD_LIBRARY_PATH", &dir).args([side, "-a", "127.0.0.1", "-p", "7174", "-C", "10", "-V"]);
        host.start(command)
    };
    let mut server = start(world.host(), "-s")?;
    urxe_tests::wait_until("the server listens", || {
        let listens = world.host().run("cat", &["/proc/net/unix"])?.stdout.contains("@urxe/1/service/");
        Ok(listens || !server.is_running()?)
    })?;
    let (client, server) = (start(world.host(), "-c")?.finish(TIMEOUT)?, server.finish(TIMEOUT)?);
    ensure!(client.status.success() && server.status.success(), "{client}\n{server}");
    Ok(())
}

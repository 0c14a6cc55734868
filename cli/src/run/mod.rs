//! `urxe run`: a program, and all that it starts, finds urxe's devices.
//!
//! The library is preloaded, and a folder holds what it shows in the place of `/sys/class/infiniband` and
//! `/dev/infiniband` ([`folder`]). Then this process *becomes* the program: its exit status, signals, terminal and
//! process id are nobody else's business ([`artifacts`] is the exception, when asked for). Somebody has to remove the folder afterwards: the [`reaper`], a process of its
//! own that sleeps until then.

mod artifacts;
mod child;
mod exec;
mod folder;
mod isolate;
mod preload_check;
pub(crate) mod reaper;
mod remove;
mod users;
mod users_lock;

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::options::Options;
use crate::topology::Topology;
use crate::{devices, library, out, suggest, valgrind};
use artifacts::Artifacts;
use folder::Folder;

/// Exit statuses of `urxe run` itself, as those of `env` and `timeout` (coreutils).
pub(crate) const FAILED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Variables by which libibverbs would look elsewhere.
const IN_THE_WAY: [&str; 1] = ["SYSFS_PATH"];

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,

    /// Show the devices to system calls too, in namespaces of their own: for programs that are statically linked
    #[arg(long)]
    isolate: bool,

    /// If the program fails, leave captures, their trace, explanations, counters and options in DIR; this process stays as its parent
    #[arg(long, value_name = "DIR")]
    artifacts: Option<PathBuf>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes the program; comes back only if that fails.
pub(crate) fn run(args: &Args) -> ExitCode {
    let failed = match leave_outer_run(args).and_then(|()| prepare(args)) {
        Ok(None) => exec::exec(&args.command),
        Ok(Some(code)) => return code,
        Err(error) => {
            out::complain(&format_args!("{error:#}"));
            return ExitCode::from(FAILED);
        }
    };
    let Err(error) = failed;
    let name = args.command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    out::complain(&format_args!("cannot run {name}: {error}"));
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}

/// Return type of [`exec::exec`]: only ever an error.
type Never = Result<Infallible, std::io::Error>;

/// Starts this command anew without the folder of an outer `urxe run`, if mounts are to be made: the preloaded library would
/// lead them into that folder.
fn leave_outer_run(args: &Args) -> Result<()> {
    let is_inside = std::env::var_os(urxe_options::RUN_VARIABLE).is_some_and(|folder| !folder.is_empty());
    if !args.isolate || !is_inside {
        return Ok(());
    }
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var(urxe_options::RUN_VARIABLE, "") };
    let Err(error) = exec::exec_file(&this_command()?, &std::env::args_os().collect::<Vec<_>>());
    Err(error).context("starting urxe anew, without the devices of the `urxe run` that this is in")
}

/// Prepares this process to become the program. With `--artifacts` a child is to, and its parent gets to know how to end.
fn prepare(args: &Args) -> Result<Option<ExitCode>> {
    let library = library::beside_this_command()?;
    for mistake in suggest::in_environment() {
        out::complain(&format_args!("warning: {mistake}"));
    }
    let unpreloaded = args.command.first().and_then(|name| preload_check::without_preload(name));
    if let Some(unpreloaded) = unpreloaded.filter(|unpreloaded| !(args.isolate && unpreloaded.sees_files())) {
        out::complain(&format_args!("warning: {unpreloaded}"));
    }
    let settings = args.options.settings()?;
    let choices = settings.choices()?;
    // Here it is one line; every process that opens the device would say it again.
    settings.observations()?;
    let interfaces = devices::interfaces(&choices)?;
    for obstacle in interfaces.iter().filter_map(|interface| interface.check_usable().err()) {
        out::complain(&format_args!("warning: {obstacle}"));
    }
    let names: Vec<&str> = choices.devices.iter().map(|device| device.name.as_str()).collect();
    let topology = choices.topology.as_deref().map(|file| Topology::read(file, &names)).transpose()?;
    let artifacts =
        args.artifacts.as_deref().map(|dir| Artifacts::create(dir, &settings, &args.command)).transpose()?;
    let folder = Folder::create(&choices, &interfaces, topology.as_ref(), &library)?;
    let preload = preload_value(&folder.library(&library), std::env::var_os("LD_PRELOAD").as_deref());
    let path = reaper::start(folder)?;
    if args.isolate {
        isolate::enter(&path)?;
    }

    let mut variables: Vec<(&OsStr, &OsStr)> =
        vec![(OsStr::new("LD_PRELOAD"), &preload), (OsStr::new(urxe_options::RUN_VARIABLE), path.as_os_str())];
    // Any other program's environment stays as it is.
    let is_valgrind = args.command.first().is_some_and(|name| Path::new(name).file_name() == Some("valgrind".as_ref()));
    let options = || valgrind::options(&path.join(valgrind::FILE), std::env::var_os(valgrind::VARIABLE).as_deref());
    let valgrind = if is_valgrind { options() } else { None };
    variables.extend(valgrind.as_deref().map(|value| (OsStr::new(valgrind::VARIABLE), value)));
    variables.extend(settings.variables().map(|(name, value)| (OsStr::new(name), OsStr::new(value))));
    let captures = artifacts.as_ref().map_or(Vec::new(), |artifacts| artifacts.variables(&settings));
    variables.extend(captures.iter().map(|(name, value)| (OsStr::new(*name), value.as_os_str())));
    // Who sits in front of it wants to know, and so does who reads the log of a CI job; other logs have the cause of a failure.
    let explain = urxe_options::EXPLAIN.variable;
    let said = std::env::var_os(explain).is_some() || variables.iter().any(|(name, _)| *name == explain);
    let variable = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    let is_read = || std::io::stderr().is_terminal() || urxe_options::is_ci(variable);
    if !said {
        let how = if artifacts.is_some() || is_read() { "1" } else { "failure" };
        variables.push((OsStr::new(explain), OsStr::new(how)));
    }
    // SAFETY: this process has one thread.
    unsafe {
        for (name, value) in variables {
            std::env::set_var(name, value);
        }
        for name in IN_THE_WAY {
            std::env::remove_var(name);
        }
    }
    artifacts.map_or(Ok(None), |artifacts| artifacts.fork(&path))
}

/// Value of `LD_PRELOAD` with `library` in front of those that are there; an earlier one of urxe goes.
fn preload_value(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let separator = |byte: &u8| matches!(byte, b':' | b' ');
    for other in before.unwrap_or_default().as_bytes().split(separator).filter(|other| !other.is_empty()) {
        if Path::new(OsStr::from_bytes(other)).file_name() != library.file_name() {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    value
}

/// Path of the running executable, even if its file was replaced meanwhile.
fn this_command() -> Result<std::ffi::CString> {
    std::ffi::CString::new("/proc/self/exe").context("a path without NUL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloaded_libraries_stay() {
        let value = |before: Option<&str>| preload_value(Path::new("/u/liburxe.so"), before.map(OsStr::new));
        assert_eq!(value(None), "/u/liburxe.so");
        assert_eq!(value(Some("")), "/u/liburxe.so");
        assert_eq!(value(Some("/a.so /b.so")), "/u/liburxe.so:/a.so:/b.so");
        assert_eq!(value(Some("/old/liburxe.so:/a.so")), "/u/liburxe.so:/a.so");
    }
}

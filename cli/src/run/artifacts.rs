//! `urxe run --artifacts DIR`: what a failure leaves behind.
//!
//! Only a parent learns how a program has ended, whatever ended it. So this process stays and is the program's parent, as
//! timeout(1) does; without the option it becomes the program. While the program runs, captures are written to a folder in
//! DIR; what the program has succeeded without is removed again.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result};

use super::child;
use crate::options::Settings;
use crate::{env, out, status, trace};

/// Sizes of each process's captures: 64 MiB, and as much of what came before.
const ROTATION: &str = "64M,1";

/// The folder, and where captures are until the program has ended.
pub(super) struct Artifacts {
    dir: PathBuf,
    /// The folder was not there before.
    is_new: bool,
    captures: tempfile::TempDir,
    /// Lines of the file that makes the same run again.
    options: String,
}

impl Artifacts {
    /// Makes the folder.
    pub(super) fn create(dir: &Path, settings: &Settings, command: &[OsString]) -> Result<Self> {
        let failed = || format!("--artifacts {}", dir.display());
        let is_new = match fs::create_dir(dir) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => false,
            Err(error) => return Err(error).with_context(failed),
        };
        let dir = dir.canonicalize().with_context(failed)?;
        let captures = tempfile::Builder::new().prefix(".captures-").tempdir_in(&dir).with_context(failed)?;
        let options = format!("{}\n{}", comment(command), settings.to_toml());
        Ok(Self { dir, is_new, captures, options })
    }

    /// Variables of the program: its captures, unless it has another place for them.
    pub(super) fn variables(&self, settings: &Settings) -> Vec<(&'static str, OsString)> {
        if settings.has(urxe_options::PCAP) {
            return Vec::new();
        }
        let file = self.captures.path().join("capture-%p.pcapng").into_os_string();
        let mut variables = vec![(urxe_options::PCAP.variable, file)];
        if !settings.has(urxe_options::PCAP_ROTATE) {
            variables.push((urxe_options::PCAP_ROTATE.variable, ROTATION.into()));
        }
        variables
    }

    /// Starts a child, which is to become the program and gets `None`, and waits for it. Leaves what there is to be seen if it
    /// fails; returns how this process is to end.
    pub(super) fn fork(self, run_folder: &Path) -> Result<Option<ExitCode>> {
        let explanations = run_folder.join(urxe_options::RUN_EXPLANATIONS);
        let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&explanations);
        if let Err(error) = made {
            self.remove();
            return Err(error).with_context(|| explanations.display().to_string());
        }
        let child = match child::fork() {
            Ok(Some(child)) => child,
            Ok(None) => {
                // The folder is the parent's.
                std::mem::forget(self);
                return Ok(None);
            }
            Err(error) => {
                self.remove();
                return Err(error).context("starting a process");
            }
        };
        let ended = child.wait().context("waiting for the program")?;
        if ended.success() {
            self.remove();
        } else if let Err(error) = self.keep(ended, run_folder) {
            out::complain(&format_args!("{error:#}"));
        }
        Ok(Some(end_like(ended)))
    }

    /// Removes what was made for nothing.
    fn remove(&self) {
        let _ = fs::remove_dir_all(self.captures.path());
        if self.is_new {
            let _ = fs::remove_dir(&self.dir);
        }
    }

    /// Writes down how the program and its devices were.
    fn keep(&self, ended: ExitStatus, run_folder: &Path) -> Result<()> {
        let dir = &self.dir;
        let write = |name: &str, text: &str| {
            fs::write(dir.join(name), text).with_context(|| format!("--artifacts {}: {name}", dir.display()))
        };
        write("options.toml", &format!("# urxe {}: {ended}\n{}", env!("CARGO_PKG_VERSION"), self.options))?;
        write("status.txt", &status::at_end(run_folder))?;
        let explanations = fs::read_to_string(run_folder.join(urxe_options::RUN_EXPLANATIONS));
        match explanations.ok().filter(|text| !text.is_empty()) {
            Some(text) => write("explanations.txt", &text)?,
            // Those of an earlier failure, which this one is not.
            None => drop(fs::remove_file(dir.join("explanations.txt"))),
        }
        let mut captures: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(self.captures.path()).into_iter().flatten().flatten() {
            let kept = dir.join(entry.file_name());
            fs::rename(entry.path(), &kept).with_context(|| format!("--artifacts {}", dir.display()))?;
            captures.push(kept);
        }
        let _ = fs::remove_dir(self.captures.path());
        captures.sort();
        let drawn = if captures.is_empty() {
            "no packets were captured: no device was opened, or --pcap has them\n".to_owned()
        } else {
            trace::exchanges(&captures).unwrap_or_else(|error| format!("{error:#}\n"))
        };
        write("trace.txt", &drawn)?;
        out::complain(&format_args!("the program failed ({ended}): see {}", dir.display()));
        Ok(())
    }
}

/// The command that makes the same run again, as a line of comment.
fn comment(command: &[OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| env::word(&word.to_string_lossy())).collect();
    format!("# urxe run --config options.toml -- {}", words.join(" "))
}

/// The exit status of the program; if a signal has ended it, that signal ends this process too.
fn end_like(ended: ExitStatus) -> ExitCode {
    if let Some(signal) = ended.signal() {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit, and plain numbers. The program has dumped its core; this one is of no interest.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    ended.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_of_several_lines_is_one_line_of_comment() {
        let script = "a=1\nb='x y'\techo";
        let line = comment(&["sh".into(), "-c".into(), script.into()]);
        let words = line.strip_prefix("# urxe run --config options.toml -- sh -c ").unwrap();
        assert!(!line.contains('\n'), "{line}");
        let said = std::process::Command::new("bash").args(["-c", &format!("printf %s {words}")]).output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), script);
    }
}

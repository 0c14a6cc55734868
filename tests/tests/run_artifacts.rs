//! `urxe run --artifacts DIR`: what a failure leaves behind, and that success leaves nothing.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use urxe_tests::{Finished, Launcher, TIMEOUT, wait_until};

/// Both ends of a ping-pong.
const PINGPONG: &str = "ibv_rc_pingpong -d urxe0 -g 1 -n 20 >&2 & \
    until ibv_rc_pingpong -d urxe0 -g 1 -n 20 localhost 2>/dev/null; do sleep 0.1; done; wait";

fn run(launcher: &Launcher, dir: &Path, options: &[&str], script: &str) -> Result<Finished> {
    let dir = dir.display().to_string();
    launcher.try_run(&[&["--artifacts", &dir], options].concat(), &["sh", "-c", script])
}

/// Names of the files in a folder, in order.
fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn dir(launcher: &Launcher) -> PathBuf {
    launcher.tmp().join("artifacts")
}

#[test]
fn a_failure_leaves_captures_trace_counters_and_options() -> Result<()> {
    let launcher = Launcher::new()?;
    let dir = dir(&launcher);
    let said = run(&launcher, &dir, &["--mtu", "1024"], &format!("{PINGPONG}; exit 7"))?;
    ensure!(said.status.code() == Some(7), "{said}");
    ensure!(said.stderr.contains("urxe: the program failed (exit status: 7): see /"), "{said}");
    let names = files(&dir);
    let (captures, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.ends_with(".pcapng"));
    ensure!(others == ["options.toml", "status.txt", "trace.txt"], "{names:?}");
    ensure!(captures.len() >= 2 && captures.iter().all(|name| name.starts_with("capture-")), "{names:?}");
    let read = |name: &str| fs::read_to_string(dir.join(name));
    let (options, status, trace) = (read("options.toml")?, read("status.txt")?, read("trace.txt")?);
    ensure!(options.contains("\nmtu = \"1024\"\n") && options.contains("exit status: 7"), "{options}");
    ensure!(status.contains("closed devices urxe0") && status.contains("  tx_packets "), "{status}");
    ensure!(trace.contains("SEND"), "{trace}");
    // The same again, with the file.
    let config = dir.join("options.toml").display().to_string();
    launcher.try_run(&["--config", &config], &["ibv_devinfo"])?.success()?;
    Ok(())
}

/// Standard error of a program may be lost, or somebody's who does not show it.
#[test]
fn explanations_are_kept() -> Result<()> {
    let launcher = Launcher::new()?;
    let dir = dir(&launcher);
    let at = dir.display().to_string();
    let explanation =
        "urxe: URXE_FAULTS asks for it (ibv_open_device failed with EPERM)\n      see how the program takes it\n";
    let run = |options: &[&str], script: &str| {
        let faults = ["--artifacts", &at, "--faults", "fail=open_device:EPERM"];
        launcher.try_run(&[&faults, options].concat(), &["sh", "-c", script])
    };
    let lost = "ibv_devinfo 2>/dev/null; ibv_devinfo 2>/dev/null; exit 7";
    for (options, explained) in [(&[][..], 2), (&["--explain", "failure"], 2), (&["--explain", "0"], 0)] {
        let said = run(options, lost)?;
        ensure!(said.status.code() == Some(7) && !said.stderr.contains("asks for it"), "{options:?}: {said}");
        let kept = fs::read_to_string(dir.join("explanations.txt")).unwrap_or_default();
        ensure!(kept == explanation.repeat(explained), "{options:?}: {kept}");
        fs::remove_dir_all(&dir)?;
    }
    // Colours are the terminal's.
    let line = format!(
        "'{}' run --artifacts '{at}' --faults fail=open_device:EPERM -- ibv_devinfo",
        launcher.urxe().display()
    );
    let mut command = launcher.plain(&["script", "-qec", &line, "/dev/null"]);
    command.env("TERM", "xterm");
    let said = launcher.host().start(command)?.finish(TIMEOUT)?;
    ensure!(said.stdout.contains("\x1b[1;31m"), "{said}");
    let kept = fs::read_to_string(dir.join("explanations.txt"))?;
    ensure!(kept == explanation, "{kept}");
    fs::remove_dir_all(&dir)?;
    run(&[], "ibv_devinfo; exit 0")?.success()?;
    ensure!(!dir.exists(), "success leaves {:?}", files(&dir));
    Ok(())
}

#[test]
fn success_leaves_nothing() -> Result<()> {
    let launcher = Launcher::new()?;
    let dir = dir(&launcher);
    let said = run(&launcher, &dir, &[], PINGPONG)?.success()?;
    ensure!(!dir.exists() && !said.stderr.contains("urxe: "), "{said}");
    // A folder that was there before stays, and what is in it.
    run(&launcher, &dir, &[], "exit 1")?;
    let before = files(&dir);
    run(&launcher, &dir, &[], "exit 0")?.success()?;
    ensure!(!before.is_empty() && files(&dir) == before, "{before:?} became {:?}", files(&dir));
    Ok(())
}

#[test]
fn signals_and_statuses_are_the_program_s() -> Result<()> {
    let launcher = Launcher::new()?;
    let dir = dir(&launcher);
    let said = run(&launcher, &dir, &[], "kill -SEGV $$")?;
    ensure!(said.status.signal() == Some(libc::SIGSEGV) && files(&dir).contains(&"trace.txt".to_owned()), "{said}");
    let at = dir.display().to_string();
    let said = launcher.try_run(&["--artifacts", &at], &["/no/such/program"])?;
    ensure!(said.status.code() == Some(127) && said.stderr.contains("cannot run /no/such/program"), "{said}");
    let said = launcher.try_run(&["--artifacts", "/no/such/folder/at/all"], &["true"])?;
    ensure!(said.status.code() == Some(125) && said.stderr.contains("--artifacts /no/such/folder"), "{said}");
    // A signal to `urxe` reaches the program.
    let mark = launcher.tmp().join("mark");
    let script = format!("trap 'exit 9' TERM INT; echo >'{}'; while :; do sleep 0.05; done", mark.display());
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let _ = fs::remove_file(&mark);
        let mut command = launcher.command(&["--artifacts", &at], &["sh", "-c", &script])?;
        // A shell ignores SIGINT in programs that it starts in the background, and a shell so started cannot trap it.
        // SAFETY: signal(2) is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                libc::signal(signal, libc::SIG_DFL);
                Ok(())
            })
        };
        let running = launcher.host().start(command)?;
        wait_until("the program runs", || Ok(mark.exists()))?;
        running.signal(signal)?;
        let said = running.finish(TIMEOUT)?;
        ensure!(said.status.code() == Some(9), "signal {signal}: {said}");
    }
    Ok(())
}

/// Some supervisors start programs with SIGCHLD ignored: then the kernel keeps no status of a child.
#[test]
fn an_ignored_sigchld_is_the_program_s_and_no_status_is_lost() -> Result<()> {
    let launcher = Launcher::new()?;
    let dir = dir(&launcher).display().to_string();
    let mut command =
        launcher.command(&["--artifacts", &dir], &["grep", "-h", "SigIgn", "/proc/self/status", "/no/such/file"])?;
    // SAFETY: signal(2) is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            Ok(())
        })
    };
    let said = launcher.host().start(command)?.finish(TIMEOUT)?;
    ensure!(said.status.code() == Some(2), "{said}");
    let ignored = said.stdout.split_whitespace().nth(1).map(|mask| u64::from_str_radix(mask, 16)).transpose()?;
    ensure!(ignored.is_some_and(|mask| mask & 1 << (libc::SIGCHLD - 1) != 0), "{said}");
    Ok(())
}

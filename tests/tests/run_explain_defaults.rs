//! When failures are explained unasked: in jobs of continuous integration, and below `urxe run` at a terminal.

use std::os::unix::process::ExitStatusExt;

use anyhow::{Result, ensure};
use urxe_tests::{Finished, Launcher, TIMEOUT, World};

/// A program whose first verb fails.
const FAILS: (&str, &str) = ("URXE_FAULTS", "fail=open_device:EPERM");
const CAUSE: &str = "URXE_FAULTS asks for it (ibv_open_device failed with EPERM)";

fn devinfo(launcher: &Launcher, variables: &[(&str, &str)], options: &[&str]) -> Result<Finished> {
    let mut command = launcher.command(options, &["ibv_devinfo"])?;
    command.envs([FAILS]).envs(variables.iter().copied());
    launcher.host().start(command)?.finish(TIMEOUT)
}

#[test]
fn failures_are_explained_in_ci() -> Result<()> {
    let launcher = Launcher::new()?;
    let said = devinfo(&launcher, &[("CI", "true")], &[])?.failure()?;
    let explanation = format!("urxe: {CAUSE}\n      see how the program takes it\n");
    ensure!(said.stderr.contains(&explanation) && said.stderr.matches("urxe: ").count() == 1, "{said}");
    for (variables, options) in
        [(&[("CI", "true"), ("URXE_EXPLAIN", "0")][..], &[][..]), (&[("CI", "true")], &["--explain", "0"])]
    {
        let said = devinfo(&launcher, variables, options)?.failure()?;
        ensure!(!said.stderr.contains("urxe: "), "{variables:?} {options:?}: {said}");
    }
    // What succeeds says nothing.
    let mut command = launcher.command(&[], &["ibv_devinfo"])?;
    command.env("CI", "true");
    let said = launcher.host().start(command)?.finish(TIMEOUT)?.success()?;
    ensure!(said.stderr.is_empty(), "{said}");
    Ok(())
}

/// Programs of an installed urxe, and those of containers, have the variable alone.
#[test]
fn installed_programs_are_explained_in_ci() -> Result<()> {
    let world = World::new()?;
    let said = |variables: &[(&str, &str)]| -> Result<String> {
        let mut command = world.host().command("ibv_devinfo");
        command.envs([FAILS]).envs(variables.iter().copied());
        Ok(world.host().start(command)?.finish(TIMEOUT)?.failure()?.stderr)
    };
    let in_ci = said(&[("CI", "true")])?;
    ensure!(in_ci.contains(&format!("urxe: {CAUSE}\n")) && in_ci.matches("urxe: ").count() == 1, "{in_ci}");
    for variables in [&[][..], &[("CI", "false")], &[("CI", "true"), ("URXE_EXPLAIN", "0")]] {
        let said = said(variables)?;
        ensure!(!said.contains("urxe: "), "{variables:?}: {said}");
    }
    Ok(())
}

/// A program that opens a device, which fails, and ends with the status that it is given.
const OPENS: &str = "import ctypes, sys
v = ctypes.CDLL('libibverbs.so.1')
v.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
v.ibv_open_device.argtypes = [ctypes.c_void_p]
v.ibv_open_device.restype = ctypes.c_void_p
v.ibv_open_device(v.ibv_get_device_list(None)[0])
sys.stderr.write('after\\n')
sys.exit(int(sys.argv[1]))";

fn opens(launcher: &Launcher, options: &[&str], script: &str) -> Result<Finished> {
    let mut command = launcher.command(options, &["sh", "-c", script, "sh", OPENS])?;
    command.envs([FAILS]);
    launcher.host().start(command)?.finish(TIMEOUT)
}

/// A log may be somebody's data: only who fails adds to it, at the end.
#[test]
fn elsewhere_explanations_wait_for_a_failure() -> Result<()> {
    let launcher = Launcher::new()?;
    let python = |status: u8| format!("exec /usr/bin/python3 -c \"$1\" {status}");
    let said = opens(&launcher, &[], &python(0))?.success()?;
    ensure!(said.stderr == "after\n", "{said}");
    let said = opens(&launcher, &[], &python(3))?;
    ensure!(said.status.code() == Some(3), "{said}");
    ensure!(said.stderr == format!("after\nurxe: {CAUSE}\n      see how the program takes it\n"), "{said}");
    // A forked child does not say again what its parent has to say.
    let forks = OPENS.replace("sys.exit", "import os\nos.fork() and os.wait()\nsys.exit");
    let mut command = launcher.command(&[], &["/usr/bin/python3", "-c", &forks, "4"])?;
    command.envs([FAILS]);
    let said = launcher.host().start(command)?.finish(TIMEOUT)?;
    ensure!(said.status.code() == Some(4) && said.stderr.matches(CAUSE).count() == 1, "{said}");
    let said = opens(&launcher, &["--explain", "0"], &python(3))?;
    ensure!(said.stderr == "after\n", "{said}");
    Ok(())
}

/// Ways to fail of `ends.c` that exit(3) does not see, and whether they end by a signal.
const FAILURES: [(&str, bool); 17] = [
    ("abort", true),
    ("assert", true),
    ("_exit", false),
    ("_Exit", false),
    ("quick_exit", false),
    ("fault", true),
    ("raise", true),
    ("sent", true),
    ("handler leaves", false),
    ("handler raises", true),
    ("handler kills", true),
    ("handler returns", true),
    ("handler returns to assert", true),
    ("handler with information returns", true),
    ("killed by itself", true),
    ("killed by a thread of its own", true),
    ("filtered", false),
];
/// Ways to end well after something like that.
const SUCCESSES: [&str; 9] = [
    "",
    "handler ends well",
    "_exit well",
    "_exit of a byte",
    "abort survived",
    "assert survived",
    "fault survived",
    "raise ignored",
    "child fails",
];

#[test]
fn every_failure_has_its_explanation() -> Result<()> {
    let launcher = Launcher::new()?;
    let source = launcher.world().dir().join("ends.c");
    std::fs::write(&source, include_str!("../programs/ends.c"))?;
    let (source, program) = (source.display().to_string(), source.with_extension("").display().to_string());
    launcher.host().run("gcc", &["-O1", "-Wall", "-Werror", "-o", &program, &source, "-libverbs"])?;
    let run = |way: &str| -> Result<Finished> {
        let mut command = launcher.command(&[], &[&program, way])?;
        command.env("URXE_FAULTS", "fail=reg_mr:ENOMEM,nth=2");
        launcher.host().start(command)?.finish(TIMEOUT)
    };
    let explanation =
        "urxe: URXE_FAULTS asks for it (ibv_reg_mr failed with ENOMEM)\n      see how the program takes it\n";
    for (way, is_signal) in FAILURES {
        let said = run(way)?;
        ensure!(!said.status.success() && said.status.signal().is_some() == is_signal, "{way}: {said}");
        // What an assertion says comes first where its handler decides.
        ensure!(said.stderr.starts_with("after\n") && said.stderr.contains(explanation), "{way}: {said}");
        ensure!(said.stderr.matches("urxe: ").count() == 1, "{way}: {said}");
    }
    for way in SUCCESSES {
        let said = run(way)?.success()?;
        ensure!(!said.stderr.contains("urxe: "), "{way}: {said}");
    }
    // pytest has this handler.
    let crashes = OPENS.replace("sys.exit", "import faulthandler, os\nfaulthandler.enable()\nos.abort() or");
    let mut command = launcher.command(&[], &["/usr/bin/python3", "-c", &crashes, "4"])?;
    command.envs([FAILS]);
    let said = launcher.host().start(command)?.finish(TIMEOUT)?;
    ensure!(said.status.signal() == Some(libc::SIGABRT) && said.stderr.matches(CAUSE).count() == 1, "{said}");
    Ok(())
}

#[test]
fn terminals_get_colours() -> Result<()> {
    let launcher = Launcher::new()?;
    let urxe = launcher.urxe();
    let line = format!("'{}' run -- ibv_devinfo", urxe.display());
    let ask = |variables: &[(&str, &str)]| -> Result<Finished> {
        let mut command = launcher.plain(&["script", "-qec", &line, "/dev/null"]);
        command.env("TERM", "xterm").envs([FAILS]).envs(variables.iter().copied());
        launcher.host().start(command)?.finish(TIMEOUT)
    };
    let said = ask(&[])?;
    ensure!(said.stdout.contains(&format!("urxe: \x1b[1;31m{CAUSE}\x1b[0m\r\n      \x1b[32msee how")), "{said}");
    let said = ask(&[("NO_COLOR", "1")])?;
    ensure!(
        said.stdout.contains(&format!("urxe: {CAUSE}\r\n      see how")) && !said.stdout.contains('\x1b'),
        "{said}"
    );
    Ok(())
}

/// The ends are two processes, each with an explanation: what the server finds stands first in the client's.
#[test]
fn the_peer_s_reason_leads() -> Result<()> {
    let launcher = Launcher::new()?;
    let script = "ibv_rc_pingpong -d urxe0 -g 1 -s 100 >/dev/null 2>&1 &
        while :; do
            ibv_rc_pingpong -d urxe0 -g 1 -s 4096 localhost >/dev/null 2>$TMPDIR/said
            grep -q \"Couldn't connect\" $TMPDIR/said || break
            sleep 0.1
        done
        cat $TMPDIR/said; wait";
    // The user who tests: processes of user 65534, the kernel's name for users that it does not know, are not told apart.
    let urxe = launcher.urxe();
    let mut command = launcher.host().command(&urxe);
    command.args(["run", "--explain", "1", "--", "sh", "-c", script]);
    let said = launcher.host().start(command)?.finish(TIMEOUT)?;
    let lines: Vec<&str> = said.stdout.lines().collect();
    let at = lines.iter().position(|line| {
        line.starts_with(
            "urxe: at the peer: the message is longer than the receive that it came to (IBV_WC_REM_INV_REQ_ERR",
        )
    });
    let remedy = at.and_then(|at| lines[at..].iter().find(|line| line.starts_with("      there: ")));
    ensure!(remedy.is_some_and(|line| line.contains("post receives as long as the longest message")), "{said}");
    Ok(())
}

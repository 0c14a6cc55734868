//! When `urxe run` explains unasked: at a terminal, and in jobs of continuous integration.

use anyhow::{Result, ensure};
use urxe_tests::{Finished, Launcher, TIMEOUT};

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
    for (variables, options) in [
        (&[("CI", "false")][..], &[][..]),
        (&[("CI", "true"), ("URXE_EXPLAIN", "0")], &[]),
        (&[("CI", "true")], &["--explain", "0"]),
    ] {
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

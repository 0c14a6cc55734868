//! Random programs of verbs (`conformance/differential`). Against the kernel's rxe: `interop`, and `make differential`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use urxe_tests::artifacts;

const SEEDS: usize = 150;
/// Calls and completions that so many seeds come to, at least.
const RESULTS: usize = 100 * SEEDS;

fn conformance() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance")
}

/// A program beside urxe0, on a machine of its own.
fn on_a_machine(words: &[&str]) -> Result<Output> {
    let machine = conformance().join("machine");
    Command::new(machine).arg(artifacts::bin_dir()?).args(words).output().context("running conformance/machine")
}

#[test]
fn random_programs_come_to_the_same_over_udp_and_shared_memory() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let program = dir.path().join("differential");
    let built = Command::new(conformance().join("differential/build")).arg(&program).output()?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let run = conformance().join("differential/run");
    let (run, program) = (run.to_str().context("a path")?, program.to_str().context("a path")?);
    let output = on_a_machine(&[run, "--program", program, "--seeds", &SEEDS.to_string()])?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{stdout}{stderr}");
    let last = stdout.lines().last().unwrap_or_default();
    let compared = last.strip_prefix(&format!("{SEEDS} seeds over udp and shm: "));
    let compared = compared.and_then(|rest| rest.strip_suffix(" results compared, 0 unexpected differences"));
    let compared: usize = compared.with_context(|| last.to_owned())?.parse()?;
    ensure!(compared >= RESULTS, "only {compared}");
    Ok(())
}

/// The programs of docs/reference/known-bugs-elsewhere.md, on a device that has not these bugs.
#[test]
fn bugs_elsewhere_are_not_here() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for (name, arguments, says) in [
        ("next-poll", &["urxe0"][..], "1 completion\n"),
        ("wr-lists", &["urxe0", "1"][..], "list: 30 bytes, inline: 5 bytes\n"),
        ("bind-done-twice", &["urxe0", "1"][..], "send: success, bind: success\n"),
        ("local-inv-of-unbound-window", &["urxe0", "1"][..], "completes: local QP operation error\n"),
    ] {
        let (source, program) = (conformance().join(format!("differential/bugs/{name}.c")), dir.path().join(name));
        let built = Command::new("cc").arg("-o").arg(&program).arg(source).arg("-libverbs").output()?;
        ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let words: Vec<_> =
            std::iter::once(program.to_str().context("a path")?).chain(arguments.iter().copied()).collect();
        let output = on_a_machine(&words)?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success() && stdout == says,
            "{name}: {stdout}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

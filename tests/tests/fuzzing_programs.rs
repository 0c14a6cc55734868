//! Each way of docs/guide/fuzzing.md finds the mistake that is planted in docs/guide/fuzzing/kv.c, with a seed, within a number of
//! executions.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Launcher, Process, TIMEOUT, wait_until};

/// Report of AddressSanitizer about the planted mistake.
const FOUND: &str = "AddressSanitizer: heap-buffer-overflow";

/// Builds a program of the guide's folder.
fn built(folder: &Path, name: &str, sources: &[&str], options: &[&str]) -> Result<String> {
    let program = folder.join(name);
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/fuzzing");
    let mut command = Command::new("gcc");
    command.args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]).args(options);
    command.arg("-o").arg(&program).args(sources.iter().map(|source| guide.join(source)));
    let compiled = command.args(["-lrdmacm", "-libverbs"]).output().context("starting gcc (missing? make setup)")?;
    ensure!(compiled.status.success(), "gcc: {}", String::from_utf8_lossy(&compiled.stderr));
    program.into_os_string().into_string().ok().context("a path that is not UTF-8")
}

/// The server, with AddressSanitizer, when it listens.
fn server(launcher: &Launcher, options: &[&str]) -> Result<Process> {
    let program = built(launcher.world().dir(), "kv_server", &["kv_server.c", "kv.c"], &["-fsanitize=address"])?;
    let server = launcher.host().start(launcher.command(options, &[&program])?)?;
    wait_until("kv_server to listen", || Ok(server.stdout_so_far().contains("listening")))?;
    Ok(server)
}

/// The server has ended because of the planted mistake.
fn found(server: Process) -> Result<()> {
    let said = server.finish(TIMEOUT)?;
    ensure!(said.stderr.contains(FOUND) && said.stderr.contains("kv_handle"), "nothing was found: {said}");
    Ok(())
}

#[test]
fn a_planted_overflow_is_found_by_mutated_packets() -> Result<()> {
    let launcher = Launcher::new()?;
    let server = server(&launcher, &["--faults", "mutate=payload,dir=rx,opcode=SEND,seed=1"])?;
    let client = built(launcher.world().dir(), "kv_client", &["kv_client.c"], &[])?;
    let client = launcher.try_run(&[], &[&client, "127.0.0.1", "7471", "20000"])?;
    ensure!(!client.status.success(), "20000 requests were answered");
    found(server)
}

//! A short selection of `conformance/`, so that `make test` notices when a suite breaks. All of it: `make pyverbs`,
//! `make perftest`, `make ucx`, `make openmpi`, `make programs`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};
use urxe_tests::{TIMEOUT, World, artifacts};

/// A case of each program, and what is particular about transports and options.
const PERFTEST_CASES: [&str; 9] = [
    "ib_send_bw/rc/qps/new",
    "ib_send_bw/ud/srq/new",
    "ib_send_lat/xrc/plain/new",
    "ib_send_lat/uc/inline/old",
    "ib_write_bw/rc/list/new",
    "ib_write_lat/uc/plain/new",
    "ib_read_bw/rc/odp/new",
    "ib_read_lat/xrc/plain/old",
    "ib_atomic_bw/rc/compare-swap/new",
];

/// A case of each of UCX's ways to send over each transport, and to sleep until something comes.
const UCX_CASES: [&str; 8] = [
    "ucp/rc_verbs/tag_lat/8",
    "ucp/rc_verbs/tag_bw/300000",
    "ucp/rc_verbs/tag_lat/IEsleep/8",
    "ucp/rc_verbs/stream_bw/20000",
    "ucp/rc_verbs/ucp_get/20000",
    "ucp/ud_verbs/ucp_am_lat/2000",
    "uct/ud_verbs/am_bw/zcopy/3000",
    "uct/rc_verbs/fadd/short/8",
];

/// Two ranks, over each transport.
const OPENMPI_CASES: [&str; 2] = ["rc_verbs/ping_pong/2/65536", "ud_verbs/allreduce/2/65536"];

/// Programs of Debian that TEST_PACKAGES has: nothing is downloaded.
const PROGRAM_CASES: [&str; 5] =
    ["fio/send/65536", "fio/write/1048576", "fio/kill-server", "dapl/dtest-validated", "qemu/precopy"];

/// Runs these cases of a suite; all must pass.
fn passes(suite: &str, cases: &[&str]) -> Result<()> {
    let conformance = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance");
    let dir = tempfile::tempdir()?;
    let output = Command::new(conformance.join("machine"))
        .arg(artifacts::bin_dir()?)
        .arg(conformance.join(suite).join("run"))
        .arg("--out")
        .arg(dir.path().join("table.tsv"))
        // Both ends of these spin: beside programs that want the processors as much, that takes its time.
        .args(if ["ucx", "openmpi"].contains(&suite) { &["--limit", "600"][..] } else { &[] })
        .args(cases)
        .output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let all = format!("{} passed, 0 failed, 0 skipped", cases.len());
    ensure!(output.status.success() && stdout.lines().any(|line| line == all), "not {all:?}:\n{stdout}{stderr}");
    Ok(())
}

/// A machine on which urxe is installed, as `make demo` leaves it, is one without urxe for all of `conformance/`: also for
/// the guest of `kernel-rxe`, whose root folder is this.
#[test]
fn installed_urxe_is_not_seen() -> Result<()> {
    const LOOK: &str =
        "ls -d /etc/libibverbs.d/*urxe* /var/lib/*urxe* /usr/lib/tmpfiles.d/*urxe* /usr/lib*/libibverbs/*urxe* \
            /usr/lib/*/libibverbs/*urxe* 2>/dev/null || :
        ls /etc/libibverbs.d | grep -cx rxe.driver
        unset SYSFS_PATH IBV_DRIVERS
        \"$URXE_BIN_DIR/urxe\" doctor | grep installed";
    let installed = World::new()?;
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/machine");
    let mut command = installed.host().command(machine);
    command.arg(artifacts::bin_dir()?).args(["sh", "-ec", LOOK]);
    let said = installed.host().start(command)?.finish(TIMEOUT)?.success()?;
    ensure!(said.stdout == "1\ninstalled  no: start programs with `urxe run -- PROGRAM`\n", "{said}");
    Ok(())
}

#[test]
fn programs_selection() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/programs/run"))
        .arg("--bin")
        .arg(artifacts::bin_dir()?)
        .arg("--cache")
        .arg(dir.path().join("cache"))
        .arg("--out")
        .arg(dir.path().join("table.tsv"))
        .args(PROGRAM_CASES)
        .output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let all = format!("{} passed, 0 failed, 0 skipped", PROGRAM_CASES.len());
    ensure!(
        output.status.success() && stdout.lines().any(|line| line.starts_with(&all)),
        "not {all:?}:\n{stdout}{stderr}"
    );
    Ok(())
}

/// Rows of failed cases have what the program said last, and what urxe explained, however long both are.
#[test]
fn failing_rows_keep_their_explanations() -> Result<()> {
    const SCRIPT: &str = "
import pathlib, sys
conformance, out = map(pathlib.Path, sys.argv[1:])
sys.path[:0] = [str(conformance), str(conformance / 'programs')]
from hosts import Failed, Network, Running
from table import Table
net = object.__new__(Network)
waiting = Running(['sh', '-c', 'echo urxe: the link is down; sleep 600'], None, '/')
failed = Running(['sh', '-c', 'echo urxe: the peer ended; echo \"  while it sent\"; seq -s x 1000; echo =====; exit 1'], None, '/')
net.programs = [waiting, failed]
waiting.says('urxe', 60)
try:
    failed.success(60)
except Failed as error:
    assert error.explained == 'sh: urxe: the peer ended\\n  while it sent', error.explained
    table = Table(out, conformance / 'programs/expected-skips.toml')
    table.add('case', 'fail', str(error), net.explanations())
waiting.kill()
";
    let dir = tempfile::tempdir()?;
    let (conformance, table) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance"), dir.path().join("table.tsv"));
    let output = Command::new("/usr/bin/python3").args(["-c", SCRIPT]).arg(&conformance).arg(&table).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = std::fs::read_to_string(table)?;
    let explained = " sh: urxe: the peer ended while it sent / sh: urxe: the link is down\n";
    ensure!(rows.contains("status 1 of sh: ") && rows.ends_with(explained), "{rows}");
    Ok(())
}

#[test]
fn perftest_selection() -> Result<()> {
    passes("perftest", &PERFTEST_CASES)
}

/// `URXE_DIRECT=1` reaches the programs of a suite: while a case runs, for two seconds, requests are counted that went straight to memory.
/// On a busy machine nobody may look in time, so there are several attempts.
#[test]
fn perftest_without_packets() -> Result<()> {
    const WATCH: &str = "
        \"$1\" --out \"$2/table.tsv\" ib_write_bw/rc/duration/new & suite=$!
        direct=none
        while kill -0 $suite 2>/dev/null; do
            \"$URXE_BIN_DIR/urxe\" status --json >\"$2/status\" || continue
            if grep -q '\"direct_requests\": *[1-9]' \"$2/status\"; then direct=some; fi
            sleep 0.05
        done
        wait $suite
        echo \"direct requests: $direct\"";
    let conformance = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance");
    for _ in 0..10 {
        let dir = tempfile::tempdir()?;
        let output = Command::new(conformance.join("machine"))
            .arg(artifacts::bin_dir()?)
            .args(["sh", "-ec", WATCH, "sh"])
            .arg(conformance.join("perftest/run"))
            .arg(dir.path())
            .envs([("URXE_DIRECT", "1"), ("URXE_LOOPBACK", "shm")])
            .output()?;
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let says = |words: &str| stdout.lines().any(|line| line == words);
        ensure!(output.status.success() && says("1 passed, 0 failed, 0 skipped"), "{stdout}{stderr}");
        if says("direct requests: some") {
            return Ok(());
        }
    }
    bail!("no request was direct")
}

#[test]
fn ucx_selection() -> Result<()> {
    passes("ucx", &UCX_CASES)
}

#[test]
fn openmpi_selection() -> Result<()> {
    passes("openmpi", &OPENMPI_CASES)
}

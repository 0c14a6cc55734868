//! A short selection of `conformance/`, so that `make test` notices when a suite breaks. All of it: `make pyverbs`,
//! `make perftest`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use urxe_tests::artifacts;

/// One of each program, and what is particular about transports and options.
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

#[test]
fn perftest_selection() -> Result<()> {
    let conformance = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance");
    let dir = tempfile::tempdir()?;
    let output = Command::new(conformance.join("machine"))
        .arg(artifacts::bin_dir()?)
        .arg(conformance.join("perftest/run"))
        .arg("--out")
        .arg(dir.path().join("perftest.tsv"))
        .args(PERFTEST_CASES)
        .output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let all = format!("{} passed, 0 failed, 0 skipped", PERFTEST_CASES.len());
    ensure!(output.status.success() && stdout.lines().any(|line| line == all), "not {all:?}:\n{stdout}{stderr}");
    Ok(())
}

//! Interoperability with the Linux kernel's rxe, in a virtual machine: what is essential, in both roles, and `urxe run` beside
//! it. All of it: `make interop`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::artifacts;

/// Leaves these tests out, where there is no QEMU or no way to Debian's kernel; its value says why.
const EXCLUDED: &str = "URXE_WITHOUT_KERNEL_RXE";

/// Where the kernel is kept; `conformance/kernel-rxe` knows it as well.
const KERNEL_DIR: &str = "URXE_KERNEL_DIR";

/// Globs of cases without the two sides; all are run with urxe as client and as server.
const CASES: [&str; 17] = [
    "ipv4/rc_pingpong/mtu-4096",
    "ipv6/rc_pingpong/mtu-256",
    "ipv4/uc_pingpong/mtu-1024",
    "ipv6/ud_pingpong/1024",
    "ipv4/srq_pingpong",
    "ipv6/ib_send_bw/rc",
    "ipv4/ib_write_bw/rc",
    "ipv4/ib_read_bw/rc",
    "ipv4/ib_atomic_lat/rc",
    "ipv4/rping",
    "ipv6/rping",
    "ipv4/ucmatose",
    "ipv4/mckey",
    "ipv4/exchange/*/mtu-1024",
    "ipv4/exchange/ud-*",
    "ipv6/exchange/rc-mixed-batch/mtu-4096",
    "ipv6/exchange/ud-*",
];

/// Rows of the table that these make, and how many of them are differences with a reason.
const ROWS: usize = 2 * (13 + 49 + 3 + 1 + 3) + BESIDE + MANAGEMENT + LOSSES;
/// Cases on one side: `urxe run` where the kernel has a device.
const BESIDE: usize = 13;
/// Management datagrams: stock programs on the kernel's port, and messages.
const MANAGEMENT: usize = 6 + 8;
/// SENDs while 1 % of the packets are lost, in both roles.
const LOSSES: usize = 2;
const DIFFERENCES: usize = 5;

/// Random programs of verbs, over urxe and in the guest; `make differential` runs a thousand.
const SEEDS: usize = 8;
/// The cases, and these programs, in one guest.
const BOTH: &str = r#"status=0
"$0" "$@" || status=$?
"$DIFFERENTIAL" --program "$PROGRAM" --rxe --seeds "$SEEDS" || status=$?
exit $status"#;

#[test]
fn the_kernels_rxe_is_understood_and_understands() -> Result<()> {
    if let Some(why) = std::env::var_os(EXCLUDED) {
        println!("left out: {EXCLUDED}={}", why.display());
        return Ok(());
    }
    let conformance = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance");
    let kernel = std::env::var_os(KERNEL_DIR)
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/conformance/kernel"), PathBuf::from);
    // Out here: within the machine there is no network.
    let fetched = Command::new(conformance.join("kernel-rxe/fetch")).arg(&kernel).output()?;
    ensure!(
        fetched.status.success(),
        "no kernel to run; {EXCLUDED}=reason leaves this test out:\n{}",
        String::from_utf8_lossy(&fetched.stderr)
    );
    let dir = tempfile::tempdir()?;
    let program = dir.path().join("differential");
    let built = Command::new(conformance.join("differential/build")).arg(&program).output()?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let output = Command::new(conformance.join("machine"))
        .arg(artifacts::bin_dir()?)
        .arg(conformance.join("kernel-rxe/boot"))
        .arg("--kernel")
        .arg(&kernel)
        .args(["sh", "-c", BOTH])
        .arg(conformance.join("interop/run"))
        .env("DIFFERENTIAL", conformance.join("differential/run"))
        .env("PROGRAM", program)
        .env("SEEDS", SEEDS.to_string())
        .arg("--out")
        .arg(dir.path().join("table.tsv"))
        .args(["urxe>rxe", "rxe>urxe"].iter().flat_map(|sides| CASES.map(|case| format!("{sides}/{case}"))))
        .args(["kernel-coexistence/*", "management/*", "losses/*/ib_send_bw/10-permille"])
        .output()
        .context("running conformance/machine")?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let all = format!("{} passed, 0 failed, 0 skipped, {DIFFERENCES} differ", ROWS - DIFFERENCES);
    let programs = format!("{SEEDS} seeds over udp and shm and rxe: ");
    let last = stdout.lines().last().unwrap_or_default();
    ensure!(
        output.status.success()
            && stdout.lines().any(|line| line == all)
            && last.starts_with(&programs)
            && last.ends_with(" 0 unexpected differences"),
        "not {all:?} and {programs:?}; {EXCLUDED}=reason leaves this test out where QEMU cannot run:\n{stdout}{stderr}"
    );
    Ok(())
}

//! scapy: ICRCs as somebody else computes them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::world::Host;

/// The Python of the virtual environment that `make setup` puts scapy into.
pub fn python() -> Result<PathBuf> {
    let venv = std::env::var_os("URXE_VENV").map(PathBuf::from);
    let venv = venv.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/venv"));
    let python = venv.join("bin/python");
    ensure!(python.exists(), "{} is missing: make setup", python.display());
    Ok(python)
}

/// The script that recomputes ICRCs.
pub fn icrc_script() -> Result<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/icrc.py");
    Ok(script.to_str().context("a path that is not UTF-8")?.to_owned())
}

/// Packets in `file` whose ICRC is right; an error if one's is not.
pub fn right_icrcs(host: &Host, file: &Path) -> Result<usize> {
    let file = file.to_str().context("a path that is not UTF-8")?;
    let verdict = host.run(python()?, &[&icrc_script()?, file])?;
    let count = verdict.stdout.lines().last().and_then(|line| line.strip_suffix(" packets, 0 wrong"));
    Ok(count.with_context(|| format!("{verdict}"))?.parse()?)
}

//! Artifacts under test: the release build of the command and the library.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// Names the folder that holds `urxe` and `liburxe.so`; set by the Makefile, which has just built them.
const BIN_DIR: &str = "URXE_BIN_DIR";

/// The folder that holds `urxe` and `liburxe.so`, up to date.
pub fn bin_dir() -> Result<&'static Path> {
    static DIR: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let dir = DIR.get_or_init(|| find().map_err(|error| format!("{error:#}")));
    match dir {
        Ok(dir) => Ok(dir),
        Err(error) => bail!("nothing to test: {error}"),
    }
}

/// The `urxe` command.
pub fn urxe() -> Result<PathBuf> {
    Ok(bin_dir()?.join("urxe"))
}

/// The helper that makes and holds namespaces; cargo builds it together with the tests.
pub fn sandbox() -> Result<PathBuf> {
    let test = std::env::current_exe().context("finding this executable")?;
    // target/<profile>/deps/<test>-<hash>, or target/<profile>/<program>.
    let helper = test.ancestors().skip(1).take(2).map(|dir| dir.join("urxe-sandbox")).find(|path| path.is_file());
    helper.with_context(|| format!("no urxe-sandbox near {}: cargo build -p urxe-tests", test.display()))
}

fn find() -> Result<PathBuf> {
    let dir = match std::env::var_os(BIN_DIR) {
        Some(dir) => std::path::absolute(&dir).with_context(|| format!("{BIN_DIR}={}", dir.display()))?,
        None => build()?,
    };
    for name in ["urxe", "liburxe.so"] {
        ensure!(dir.join(name).is_file(), "{} is missing: make build", dir.join(name).display());
    }
    Ok(dir)
}

/// Has cargo build both, and takes their place from what cargo says.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--release", "--message-format=json-render-diagnostics"])
        .args(["-p", "urxe-provider", "-p", "urxe-cli"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo build")?;
    ensure!(output.status.success(), "cargo build --release failed: {}", output.status);
    let stdout = String::from_utf8(output.stdout)?;
    let built = stdout.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut command = built.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    let command = command.next_back().context("cargo build named no executable")?;
    Ok(command.parent().context("an executable without a folder")?.to_path_buf())
}

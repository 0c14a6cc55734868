//! Every rule of `spec/` is kept by code that names it and shown by a test that does.

use std::path::Path;

use anyhow::{Result, ensure};
use urxe_tests::requirements::Requirements;

#[test]
fn every_rule_has_code_and_tests() -> Result<()> {
    let requirements = Requirements::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))?;
    // `make requirements` shows them.
    println!("{requirements}");
    let findings: Vec<String> = requirements.findings().iter().map(ToString::to_string).collect();
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    ensure!(requirements.len() >= 100, "only {} rules were found", requirements.len());
    Ok(())
}

//! `cargo install` leaves a command that works by itself.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use urxe_tests::{World, copy_program};

/// Run by `make cargo-install`: it compiles the release build, if that has not been done.
#[test]
#[ignore = "compiles for minutes: make cargo-install"]
fn cargo_install_leaves_a_working_pair() -> Result<()> {
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let root = tempfile::tempdir()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(&cargo)
        .args(["install", "--path", "cli", "--features", "embedded", "--offline", "--locked", "--no-track", "--root"])
        .arg(root.path())
        .current_dir(repository)
        .status()?;
    ensure!(status.success(), "cargo install: {status}");
    // The build folder has that command now. Other tests want the one without a library within.
    let status = Command::new(&cargo)
        .args(["build", "--release", "-p", "urxe-cli", "--offline"])
        .current_dir(repository)
        .status()?;
    ensure!(status.success(), "cargo build: {status}");
    let bin = root.path().join("bin");
    let files = || -> Result<Vec<String>> {
        let mut names: Vec<String> = std::fs::read_dir(&bin)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        names.sort();
        Ok(names)
    };
    ensure!(files()? == ["urxe"], "{:?}", files()?);
    let world = World::bare()?;
    let urxe = bin.join("urxe");
    for _ in 0..2 {
        let listed = world.host().run(&urxe, &["run", "--", "ibv_devices"])?;
        ensure!(listed.stdout.contains("urxe0"), "{listed}");
        ensure!(files()? == ["liburxe.so", "urxe"], "{:?}", files()?);
    }
    // What an older release has left is replaced.
    let mut older = File::create(bin.join("liburxe.so")).context("writing")?;
    older.write_all(b"an older one")?;
    older.set_modified(SystemTime::UNIX_EPOCH)?;
    let listed = world.host().run(&urxe, &["run", "--", "ibv_devices"])?;
    ensure!(listed.stdout.contains("urxe0"), "{listed}");
    Ok(())
}

/// Without its library the command says, in a line, what to do.
#[test]
fn a_command_alone_says_how_to_get_the_library() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let urxe = folder.path().join("urxe");
    copy_program(urxe_tests::artifacts::urxe()?, &urxe)?;
    let output = Command::new(&urxe).args(["run", "--", "true"]).output()?;
    ensure!(
        !folder.path().join("liburxe.so").is_file(),
        "the command was built with the feature `embedded`: run `cargo build --release -p urxe-provider -p urxe-cli`"
    );
    let said = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && said.lines().count() == 1, "{said}");
    ensure!(
        said.contains("liburxe.so is missing") && said.contains("cargo install --path cli --features embedded"),
        "{said}"
    );
    Ok(())
}

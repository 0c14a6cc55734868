//! README, SECURITY, `docs/` and `spec/` name only what exists.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::artifacts;
use urxe_tests::documents::Things;

fn help(command: &[&str]) -> Result<String> {
    let said = Command::new(artifacts::urxe()?).args(command).arg("--help").output()?;
    Ok(String::from_utf8(said.stdout)?)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut documents = vec!["README.md".into(), "SECURITY.md".into()];
    for folder in ["docs", "spec"] {
        for entry in root.join(folder).read_dir().context(folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            documents.extend(name.ends_with(".md").then(|| Path::new(folder).join(name)));
        }
    }
    Ok(documents)
}

/// An empty line in the middle of a table makes rows without a header of what follows, which nobody renders as a table.
#[test]
fn tables_have_headers() -> Result<()> {
    let root = root();
    for document in documents(&root)? {
        let text = std::fs::read_to_string(root.join(&document))?;
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (number, rows) in (1..).zip(lines.windows(3)) {
            let begins = !rows[0].starts_with('|') && rows[1].starts_with('|');
            ensure!(
                !begins || rows[2].starts_with("|-"),
                "{}:{}: rows without a header",
                document.display(),
                number + 1
            );
        }
    }
    Ok(())
}

#[test]
fn documents_name_only_what_exists() -> Result<()> {
    let root = root();
    let mut all = vec![help(&[])?];
    for command in ["run", "status", "doctor", "install", "uninstall", "env", "explain", "faults", "trace"] {
        all.push(help(&[command])?);
    }
    let things = Things::read(&root, &all)?;
    let documents = documents(&root)?;
    let mut missing = Vec::new();
    for document in &documents {
        missing.extend(things.missing(document)?.iter().map(ToString::to_string));
    }
    ensure!(documents.len() > 15, "only {} documents were found", documents.len());
    ensure!(missing.is_empty(), "{}", missing.join("\n"));
    Ok(())
}

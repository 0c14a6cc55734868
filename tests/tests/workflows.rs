//! `.github/workflows`: the YAML parses, and every step runs a `make` target or a script of this repository.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize as _;
use serde_json::Value;
use urxe_tests::documents::make_targets;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reports why a command of a step is not allowed, if it is not.
fn objection(line: &str, targets: &[String]) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["make", ref arguments @ ..] if !arguments.is_empty() => {
            let unknown =
                arguments.iter().find(|word| !word.contains('=') && !targets.iter().any(|known| known == *word));
            unknown.map(|target| format!("no make target {target}"))
        }
        // What a container needs before there is a `make` to run.
        ["apt-get", "update", "&&", "apt-get", "install", ..] => None,
        [script, ..] if script.starts_with("scripts/") => {
            (!root().join(script).is_file()).then(|| format!("no file {script}"))
        }
        _ => Some("neither make nor a script".to_owned()),
    }
}

#[test]
fn workflows_run_make_targets_only() -> Result<()> {
    let makefile = fs::read_to_string(root().join("Makefile"))?;
    let targets = make_targets(&makefile);
    let releasing = fs::read_to_string(root().join("RELEASING.md"))?;
    let mut called = Vec::new();
    for entry in root().join(".github/workflows").read_dir()? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let workflow = Value::deserialize(serde_yaml_ng::Deserializer::from_str(&text))
            .with_context(|| path.display().to_string())?;
        let jobs = workflow.pointer("/jobs").and_then(Value::as_object).context("no jobs")?;
        for (name, job) in jobs {
            let steps = job.pointer("/steps").and_then(Value::as_array).with_context(|| format!("{name}: no steps"))?;
            for step in steps {
                let run = step.pointer("/run").and_then(Value::as_str);
                ensure!(run.is_some() != step.pointer("/uses").is_some(), "{}: {name}: {step}", path.display());
                for line in run.into_iter().flat_map(str::lines) {
                    let objection = objection(line, &targets);
                    ensure!(objection.is_none(), "{}: {name}: {line}: {objection:?}", path.display());
                    called
                        .extend(line.strip_prefix("make ").and_then(|rest| rest.split(' ').next()).map(str::to_owned));
                }
            }
        }
    }
    called.sort();
    called.dedup();
    // A person who releases must know which of them ran where.
    let unnamed: Vec<&String> =
        called.iter().filter(|target| !releasing.contains(&format!("`make {target}"))).collect();
    ensure!(called.len() > 10 && unnamed.is_empty(), "RELEASING.md does not name {unnamed:?} of {called:?}");
    Ok(())
}

#[test]
fn other_commands_are_refused() {
    let targets = ["test".to_owned()];
    for (line, allowed) in [
        ("make test", true),
        ("make test TREE=x", true),
        ("make toast", false),
        ("make", false),
        ("cargo test", false),
        ("scripts/fuzz 30", true),
        ("scripts/nowhere", false),
    ] {
        assert_eq!(objection(line, &targets).is_none(), allowed, "{line}");
    }
}

#[test]
fn a_release_needs_one_version_everywhere() -> Result<()> {
    let check = |tag: &str| -> Result<std::process::Output> {
        Ok(std::process::Command::new(root().join("scripts/release-check")).arg(tag).output()?)
    };
    let wrong = check("v99.0.0")?;
    ensure!(!wrong.status.success());
    ensure!(String::from_utf8_lossy(&wrong.stderr).contains("the tag is v99.0.0"), "{wrong:?}");
    Ok(())
}

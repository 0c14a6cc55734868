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

/// Shows by a dry run, in a tree of a version that has its section of the changelog, the command that would publish a release.
#[test]
fn a_release_has_its_packages_and_the_changelog() -> Result<()> {
    let tree = tempfile::tempdir()?;
    let packages = tree.path().join("packages");
    fs::create_dir(&packages)?;
    fs::create_dir(tree.path().join("scripts"))?;
    for file in ["Makefile", "scripts/release-check", "scripts/github-release"] {
        fs::copy(root().join(file), tree.path().join(file))?;
    }
    let manifest = "rust-version = \"1.0\"\n[workspace.package]\nversion = \"1.2.3\"\n";
    fs::write(tree.path().join("Cargo.toml"), manifest)?;
    fs::write(tree.path().join("CHANGELOG.md"), "## 1.2.3 - 2026-01-01\n\nThis is new.\n\n## 1.2.2\n\nThis is old.\n")?;
    let release = |tag: &str| -> Result<std::process::Output> {
        let mut make = std::process::Command::new("make");
        make.args(["--silent", "github-release", "DRY_RUN=1", &format!("TAG={tag}")]);
        make.arg(format!("PACKAGES={}", packages.display())).current_dir(tree.path());
        // Those of a `make` that runs the tests.
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
        Ok(make.output()?)
    };
    let none = release("v1.2.3")?;
    ensure!(!none.status.success() && String::from_utf8_lossy(&none.stderr).contains("no packages in"), "{none:?}");
    fs::write(packages.join("urxe.deb"), "")?;
    fs::write(packages.join("SHA256SUMS"), "")?;
    let other = release("v1.2.2")?;
    ensure!(!other.status.success() && other.stdout.is_empty(), "{other:?}");
    let output = release("v1.2.3")?;
    let said = String::from_utf8(output.stdout)?;
    let wanted = format!(
        "gh release create v1.2.3 --title urxe 1.2.3 --notes \nThis is new. {0}/SHA256SUMS {0}/urxe.deb\n",
        packages.display()
    );
    ensure!(output.status.success() && said == wanted, "{said}, not {wanted}");
    Ok(())
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

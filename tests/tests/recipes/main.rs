//! Recipes of docs/guide (CI, containers), action.yml and the Dockerfile: parsed, and run as far as one machine can.

mod action;
mod ci;
mod pods;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urxe_tests::{Finished, Host, TIMEOUT, artifacts, write_program};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn read(file: &str) -> Result<String> {
    let path = Path::new(REPOSITORY).join(file);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// Documents of the YAML block in the guide that begins with the comment `# name`.
fn recipe(name: &str) -> Result<Vec<Value>> {
    let text = read("docs/guide/ci.md")? + &read("docs/guide/containers.md")?;
    let start = format!("```yaml\n# {name}\n");
    let block = text.split_once(&start).and_then(|(_, rest)| rest.split_once("\n```\n"));
    documents(block.with_context(|| format!("no block {start:?} in docs/guide"))?.0)
}

fn documents(yaml: &str) -> Result<Vec<Value>> {
    serde_yaml_ng::Deserializer::from_str(yaml).map(|document| Ok(serde::Deserialize::deserialize(document)?)).collect()
}

fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str> {
    value.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no text at {pointer} in {value}"))
}

fn list<'a>(value: &'a Value, pointer: &str) -> Result<&'a [Value]> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.map(Vec::as_slice).with_context(|| format!("no list at {pointer} in {value}"))
}

fn strings(value: &Value, pointer: &str) -> Result<Vec<String>> {
    list(value, pointer)?.iter().map(|item| Ok(text(item, "")?.to_owned())).collect()
}

/// Runs a script of `shell`, to its successful end, on `host` with `path` in front of the machine's own.
fn shell(host: &Host, words: &[&str], script: &str, path: &Path, variables: &[(&str, &str)]) -> Result<Finished> {
    let mut command = host.command(words[0]);
    command.args(&words[1..]).arg(script).env("PATH", search_path(path)?).envs(variables.iter().copied());
    host.start(command)?.finish(TIMEOUT)?.success()
}

fn search_path(first: &Path) -> Result<String> {
    let rest = std::env::var("PATH").context("PATH")?;
    Ok(format!("{}:{rest}", first.to_str().context("a path that is not UTF-8")?))
}

/// A folder of commands that stand for those of a machine that is set up for a job; the rest is this machine's.
struct Commands(PathBuf);

impl Commands {
    fn new(dir: &Path) -> Result<Self> {
        let commands = Self(dir.join("commands"));
        fs::create_dir(&commands.0)?;
        fs::set_permissions(&commands.0, fs::Permissions::from_mode(0o755))?;
        // Jobs may become root; here they are.
        commands.add("sudo", "exec \"$@\"")?;
        // Nothing is downloaded: what is asked for is written down.
        commands.add("apt-get", &format!("echo \"$@\" >>'{}'", commands.0.join("apt-get.log").display()))?;
        Ok(commands)
    }

    fn add(&self, name: &str, script: &str) -> Result<()> {
        write_program(self.0.join(name), format!("#!/bin/sh\n{script}\n"))
    }

    /// The packages that were asked for.
    fn packages(&self) -> Result<Vec<String>> {
        let log = fs::read_to_string(self.0.join("apt-get.log"))?;
        let installs = log.lines().filter(|line| line.starts_with("install "));
        Ok(installs
            .flat_map(|line| line.split_whitespace().skip(1))
            .filter(|word| !word.starts_with('-'))
            .map(str::to_owned)
            .collect())
    }
}

const BASH: [&str; 4] = ["bash", "-eo", "pipefail", "-c"];

/// Makes the tarball of what is tested.
fn tarball(dir: &Path) -> Result<PathBuf> {
    let said =
        Command::new(Path::new(REPOSITORY).join("packaging/tarball")).arg(artifacts::bin_dir()?).arg(dir).output()?;
    ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Ok(PathBuf::from(String::from_utf8(said.stdout)?.trim_end()))
}

#[test]
fn the_dockerfile_names_what_there_is() -> Result<()> {
    let dockerfile = read("Dockerfile")?;
    let make = Command::new("make").args(["--dry-run", "--directory", REPOSITORY, "deb", "CARGO=true"]).output()?;
    ensure!(make.status.success(), "no such target: {}", String::from_utf8_lossy(&make.stderr));
    for line in ["RUN make --directory=/src deb", "COPY --from=build /src/target/packages/*.deb /tmp/", "USER nobody"] {
        ensure!(dockerfile.lines().any(|found| found == line), "no {line:?}");
    }
    ensure!(dockerfile.contains(r#"ENTRYPOINT ["urxe", "run", "--"]"#));
    Ok(())
}

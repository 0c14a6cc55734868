//! The GitHub action (action.yml).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urxe_tests::{Finished, TIMEOUT, World, artifacts};

use crate::{BASH, Commands, REPOSITORY, documents, list, read, search_path, shell, tarball, text};

/// Steps of action.yml.
fn action() -> Result<Value> {
    let action = documents(&read("action.yml")?)?.pop().context("action.yml is empty")?;
    ensure!(text(&action, "/runs/using")? == "composite");
    Ok(action)
}

/// Script of the action's step of this name, which is bash's.
fn script<'a>(action: &'a Value, name: &str) -> Result<&'a str> {
    let step = list(action, "/runs/steps")?.iter().find(|step| step["name"] == name);
    let step = step.with_context(|| format!("no step {name:?} in action.yml"))?;
    ensure!(text(step, "/shell")? == "bash", "{step}");
    text(step, "/run")
}

#[test]
fn the_action_makes_urxe_a_command() -> Result<()> {
    let action = action()?;
    let world = World::bare()?;
    let host = world.host();
    let commands = Commands::new(world.dir())?;
    // What is built is what is tested here; that there is such a target, `make` says.
    commands.add("make", "exec /usr/bin/make --dry-run \"$@\"")?;
    let (path_file, env_file, outputs) =
        (world.dir().join("path"), world.dir().join("env"), world.dir().join("outputs"));
    let files = [("GITHUB_PATH", &path_file), ("GITHUB_ENV", &env_file), ("GITHUB_OUTPUT", &outputs)];
    let folder = artifacts::bin_dir()?.to_str().context("a path that is not UTF-8")?;
    let mut names = Vec::new();
    for step in list(&action, "/runs/steps")? {
        names.push(text(step, "/name")?);
        // Another action.
        let Some(run) = step.get("run") else { continue };
        ensure!(text(step, "/shell")? == "bash", "{step}");
        let mut variables = vec![("GITHUB_ACTION_PATH", REPOSITORY)];
        for (name, path) in files {
            variables.push((name, path.to_str().context("a path that is not UTF-8")?));
        }
        let own = step.get("env").and_then(Value::as_object);
        for (name, value) in own.into_iter().flatten() {
            variables.push((
                name,
                match text(value, "")? {
                    "${{ inputs.folder }}" => folder,
                    // A branch: nothing is downloaded.
                    "${{ github.action_ref }}" => "main",
                    "${{ github.server_url }}/${{ github.action_repository }}/releases/download" => "file:///nowhere",
                    "${{ inputs.netdev }}" => text(&action, "/inputs/netdev/default")?,
                    other => anyhow::bail!("not an input of the action: {other}"),
                },
            ));
        }
        shell(host, &BASH, text(run, "")?, &commands.0, &variables)?;
    }
    ensure!(names == ["What to get", "Keep urxe", "Get urxe", "Make it a command"], "other steps: {names:?}");
    ensure!(fs::read_to_string(&path_file)?.trim_end() == fs::canonicalize(folder)?.to_str().unwrap_or_default());
    ensure!(fs::read_to_string(&env_file)? == "URXE_NETDEV=lo\n");
    Ok(())
}

/// The cache keeps the two files as long as the action's own files stay as they are, and then nothing is got.
#[test]
fn the_action_keeps_what_it_got() -> Result<()> {
    let action = action()?;
    let steps = list(&action, "/runs/steps")?;
    let step = |name: &str| steps.iter().find(|step| step["name"] == name).with_context(|| format!("no step {name:?}"));
    let (what, keep, get) = (step("What to get")?, step("Keep urxe")?, step("Get urxe")?);
    ensure!(text(what, "/id")? == "urxe" && text(keep, "/id")? == "cache", "{what} {keep}");
    ensure!(text(keep, "/uses")? == "actions/cache@v4", "{keep}");
    ensure!(text(keep, "/with/key")? == "${{ steps.urxe.outputs.key }}", "{keep}");
    let kept = "${{ steps.urxe.outputs.folder }}/urxe\n${{ steps.urxe.outputs.folder }}/liburxe.so\n";
    ensure!(text(keep, "/with/path")? == kept, "{keep}");
    for step in [what, keep] {
        ensure!(text(step, "/if")? == "inputs.folder == ''", "{step}");
    }
    ensure!(text(get, "/if")? == "inputs.folder == '' && steps.cache.outputs.cache-hit != 'true'", "{get}");

    let world = World::bare()?;
    let commands = Commands::new(world.dir())?;
    let own = world.dir().join("action");
    for folder in ["target/release", ".git", "an engine"] {
        fs::create_dir_all(own.join(folder))?;
    }
    fs::write(own.join("an engine/source.rs"), "one")?;
    let outputs = || -> Result<String> {
        let file = world.dir().join("outputs");
        let _ = fs::remove_file(&file);
        let path = |path: &Path| path.to_str().map(str::to_owned).context("a path that is not UTF-8");
        let (own, outputs) = (path(&own)?, path(&file)?);
        let variables = [("GITHUB_ACTION_PATH", own.as_str()), ("GITHUB_OUTPUT", &outputs)];
        shell(world.host(), &BASH, script(&action, "What to get")?, &commands.0, &variables)?;
        Ok(fs::read_to_string(file)?)
    };
    let first = outputs()?;
    let folder = format!("folder={}/target/release\n", own.display());
    let key = first.strip_prefix(&folder).and_then(|rest| rest.strip_prefix("key=urxe-")).context("no key")?;
    ensure!(key.starts_with(std::env::consts::ARCH) && key.contains("-glibc-2."), "{first}");
    // What was built there, and what git does, change nothing.
    fs::write(own.join("target/release/urxe"), "built")?;
    fs::write(own.join(".git/index"), "an index")?;
    ensure!(outputs()? == first, "{first}");
    fs::write(own.join("an engine/source.rs"), "two")?;
    ensure!(outputs()? != first, "{first}");
    Ok(())
}

/// A tag's action downloads the tarball of its release, and compares it with the release's checksums.
#[test]
fn the_action_of_a_tag_builds_nothing() -> Result<()> {
    let action = action()?;
    let world = World::bare()?;
    let commands = Commands::new(world.dir())?;
    commands.add("make", "echo built; exit 1")?;
    let place = world.dir().join("releases/v1.2.3");
    fs::create_dir_all(&place)?;
    let machine = std::env::consts::ARCH;
    let name = format!("urxe-1.2.3-{machine}-linux-gnu.tar.gz");
    fs::rename(tarball(world.dir())?, place.join(&name))?;
    // Beside other files of the release, as scripts/release writes it.
    fs::write(place.join("urxe_1.2.3.deb"), "another file")?;
    let sum = || -> Result<String> {
        let sums = Command::new("sha256sum").args([&name, "urxe_1.2.3.deb"]).current_dir(&place).output()?;
        ensure!(sums.status.success(), "{}", String::from_utf8_lossy(&sums.stderr));
        Ok(String::from_utf8(sums.stdout)?)
    };
    let sums = place.join(format!("SHA256SUMS-{machine}"));
    let releases = format!("file://{}", world.dir().join("releases").display());
    let get = |folder: &str| -> Result<(PathBuf, Finished)> {
        let own = world.dir().join(folder);
        fs::create_dir(&own)?;
        let variables = [("ACTION_REF", "v1.2.3"), ("RELEASES", &releases)];
        let mut command = world.host().command(BASH[0]);
        command.args(&BASH[1..]).arg(script(&action, "Get urxe")?).env("PATH", search_path(&commands.0)?);
        command.env("GITHUB_ACTION_PATH", &own).envs(variables);
        Ok((own, world.host().start(command)?.finish(TIMEOUT)?))
    };
    fs::write(&sums, sum()?)?;
    let (own, said) = get("action")?;
    ensure!(said.status.success() && !said.stdout.contains("built"), "{said}");
    let devices = world.host().run(own.join("target/release/urxe"), &["run", "--", "ibv_devices"])?;
    ensure!(devices.stdout.contains("urxe0"), "{devices}");

    // Another tarball than that of the checksums, and checksums that lack it.
    let right = sum()?;
    for (folder, wrong) in [
        ("another", right.replacen(&right[..64], &"0".repeat(64), 1)),
        ("not named", right.lines().filter(|line| !line.ends_with(&name)).collect()),
        ("empty", String::new()),
    ] {
        fs::write(&sums, wrong)?;
        let (own, said) = get(folder)?;
        ensure!(!said.status.success() && !said.stdout.contains("built"), "{folder}: {said}");
        ensure!(!own.join("target/release/urxe").exists(), "{folder}: {said}");
    }
    fs::remove_file(&sums)?;
    let (own, said) = get("none")?;
    ensure!(!said.status.success() && !own.join("target/release/urxe").exists(), "{said}");
    Ok(())
}

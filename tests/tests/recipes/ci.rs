//! The recipes of docs/guide/ci.md.

use std::fs;

use anyhow::{Context, Result, ensure};
use urxe_tests::World;

use crate::{BASH, Commands, documents, list, read, shell, strings, tarball, text};

/// Whether a service keeps the folder `.urxe` for later jobs.
#[derive(Clone, Copy, PartialEq)]
enum Cache {
    Kept,
    None,
}

/// Runs the commands of a recipe one after the other, as its runner does: in a folder that is empty at first, then, with a
/// cache, with the folder that is kept and nothing to download from. Returns the packages that were asked for.
fn run_recipe(url: &str, lines: &[String], bash: &[&str], cache: Cache) -> Result<Vec<String>> {
    let manifest = read("Cargo.toml")?;
    let of = |key: &str| {
        let found = manifest.lines().find_map(|line| line.strip_prefix(&format!("{key} = \""))?.strip_suffix('"'));
        found.with_context(|| format!("no {key} in Cargo.toml"))
    };
    let (repository, version) = (of("repository")?, of("version")?);
    let wanted = format!("{repository}/releases/download/v{version}/urxe-{version}-x86_64-linux-gnu.tar.gz");
    ensure!(url == wanted, "{url} is not that of this version: {wanted}");

    let world = World::bare()?;
    let commands = Commands::new(world.dir())?;
    let tarball = tarball(world.dir())?;
    let checkout = world.dir().join("checkout");
    fs::create_dir(&checkout)?;
    let checkout = checkout.to_str().context("a path that is not UTF-8")?;
    for _ in 0..if cache == Cache::Kept { 2 } else { 1 } {
        for line in lines {
            let url = format!("file://{}", tarball.display());
            // The runner's own folder for a job.
            let line = format!("cd '{checkout}'\n{line}");
            shell(world.host(), bash, &line, &commands.0, &[("URXE_TARBALL", &url)])?;
        }
        // The second time there is a cache.
        if tarball.exists() {
            fs::remove_file(&tarball)?;
        }
    }
    let mut packages = commands.packages().unwrap_or_default();
    packages.sort();
    packages.dedup();
    Ok(packages)
}

#[test]
fn the_github_recipe_runs() -> Result<()> {
    let workflow = documents(&read("docs/guide/ci/github.yml")?)?.pop().context("an empty recipe")?;
    let steps = list(&workflow, "/jobs/rdma/steps")?;
    let uses: Vec<&str> = steps.iter().filter_map(|step| step.get("uses")?.as_str()).collect();
    ensure!(uses == ["actions/checkout@v4", "actions/cache@v4"], "{uses:?}");
    let lines: Vec<String> = steps.iter().filter_map(|step| Some(step.get("run")?.as_str()?.to_owned())).collect();
    ensure!(uses.len() + lines.len() == steps.len(), "a step that neither runs nor uses something: {steps:?}");
    let packages = run_recipe(text(&workflow, "/env/URXE_TARBALL")?, &lines, &["bash", "-e", "-c"], Cache::Kept)?;
    ensure!(packages == ["ibverbs-utils"], "{packages:?}");
    Ok(())
}

#[test]
fn the_gitlab_recipe_runs() -> Result<()> {
    let jobs = documents(&read("docs/guide/ci/gitlab.yml")?)?.pop().context("an empty recipe")?;
    let lines = [strings(&jobs, "/rdma/before_script")?, strings(&jobs, "/rdma/script")?].concat();
    let packages = run_recipe(text(&jobs, "/variables/URXE_TARBALL")?, &lines, &BASH, Cache::Kept)?;
    // A key with a slash, as of a URL, is none of GitLab's.
    ensure!(strings(&jobs, "/rdma/cache/key/files")? == [".gitlab-ci.yml"], "{jobs}");
    ensure!(packages == ["ca-certificates", "curl", "ibverbs-utils"], "{packages:?}");
    Ok(())
}

#[test]
fn the_circleci_recipe_runs() -> Result<()> {
    let config = documents(&read("docs/guide/ci/circleci.yml")?)?.pop().context("an empty recipe")?;
    let job = &config["jobs"]["rdma"];
    let lines = list(job, "/steps")?.iter().filter_map(|step| Some(step.get("run")?.as_str()?.to_owned()));
    let packages = run_recipe(text(job, "/environment/URXE_TARBALL")?, &lines.collect::<Vec<_>>(), &BASH, Cache::Kept)?;
    ensure!(packages.contains(&"ibverbs-utils".to_owned()) && packages.contains(&"curl".to_owned()), "{packages:?}");
    Ok(())
}

#[test]
fn the_buildkite_recipe_runs() -> Result<()> {
    let pipeline = documents(&read("docs/guide/ci/buildkite.yml")?)?.pop().context("an empty recipe")?;
    // The agent makes one dollar of two when it uploads the pipeline.
    let lines: Vec<String> =
        strings(&pipeline, "/steps/0/commands")?.iter().map(|line| line.replace("$$", "$")).collect();
    run_recipe(text(&pipeline, "/env/URXE_TARBALL")?, &lines, &["bash", "-e", "-c"], Cache::None).map(drop)
}

#[test]
fn the_jenkins_recipe_runs() -> Result<()> {
    let file = read("docs/guide/ci/Jenkinsfile")?;
    let url = file.split_once("URXE_TARBALL = '").and_then(|(_, rest)| rest.split_once('\''));
    // Single quotes: Groovy puts nothing in, but reads backslashes.
    ensure!(!file.contains('\\'), "a backslash, which Groovy would read");
    let step = |rest: &str| {
        let (end, rest) = rest.strip_prefix("'''").map_or(("'", &rest[1..]), |rest| ("'''", rest));
        rest.split_once(end).map(|(script, _)| script.to_owned())
    };
    let lines: Vec<String> =
        file.split("  sh ").skip(1).filter(|rest| rest.starts_with('\'')).filter_map(step).collect();
    ensure!(lines.len() == 3, "{lines:#?}");
    // As the plugin calls it.
    let packages = run_recipe(url.context("no URXE_TARBALL")?.0, &lines, &["sh", "-xe", "-c"], Cache::None)?;
    ensure!(packages == ["ca-certificates", "curl", "ibverbs-utils"], "{packages:?}");
    Ok(())
}

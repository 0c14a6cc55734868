//! Recipes of docs/guide (CI, containers), action.yml and the Dockerfile: parsed, and run as far as one machine can.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urxe_tests::{Finished, Host, TIMEOUT, World, artifacts, copy_program, wait_until, write_program};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The user that containers run as, without capabilities.
const NOBODY: [&str; 7] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--no-new-privs",
    "--inh-caps=-all",
    "--bounding-set=-all",
];

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

/// `urxe` and `liburxe.so` in a folder that every user can read.
fn readable_copy() -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new().prefix("recipes-").tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    for name in ["urxe", "liburxe.so"] {
        copy_program(artifacts::bin_dir()?.join(name), dir.path().join(name))?;
    }
    Ok(dir)
}

const BASH: [&str; 4] = ["bash", "-eo", "pipefail", "-c"];

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

/// Makes the tarball of what is tested.
fn tarball(dir: &Path) -> Result<PathBuf> {
    let said =
        Command::new(Path::new(REPOSITORY).join("packaging/tarball")).arg(artifacts::bin_dir()?).arg(dir).output()?;
    ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Ok(PathBuf::from(String::from_utf8(said.stdout)?.trim_end()))
}

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

#[test]
fn the_daemonset_fits_the_device_plugin() -> Result<()> {
    let [daemonset] = &documents(&read("device-plugin/daemonset.yaml")?)?[..] else { anyhow::bail!("not one object") };
    let pod = daemonset.pointer("/spec/template/spec").context("no pod")?;
    ensure!(
        daemonset.pointer("/spec/selector/matchLabels") == daemonset.pointer("/spec/template/metadata/labels"),
        "{daemonset}"
    );
    let [container] = list(pod, "/containers")? else { anyhow::bail!("not one container: {pod}") };
    let image = format!("urxe-device-plugin:{}", env!("CARGO_PKG_VERSION"));
    ensure!(text(container, "/image")? == image, "{container}");
    ensure!(read("device-plugin/Cargo.toml")?.contains(&format!("\nversion = \"{}\"\n", env!("CARGO_PKG_VERSION"))));
    ensure!(read("device-plugin/Dockerfile")?.contains(&format!("docker build -t {image} ")));
    // Each folder has the path that it has on the node, and holds one of the program's.
    let program = read("device-plugin/src/main.rs")?;
    let defaults: Vec<&str> =
        program.split("default_value = \"/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    ensure!(defaults.len() == 3, "{defaults:?}");
    let mounts = list(container, "/volumeMounts")?;
    for mount in mounts {
        let volume =
            list(pod, "/volumes")?.iter().find(|volume| volume["name"] == mount["name"]).context("no volume")?;
        ensure!(volume.pointer("/hostPath/path") == mount.pointer("/mountPath"), "{mount} {volume}");
    }
    for folder in defaults.iter().map(|path| format!("/{path}")) {
        let holds = |mount: &Value| mount["mountPath"].as_str().is_some_and(|path| folder.starts_with(path));
        ensure!(mounts.iter().any(holds), "{folder} is not mounted");
    }
    Ok(())
}

/// The container of a pod: its words, and its variables.
struct Container {
    words: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Container {
    fn of(pods: &[Value], name: &str) -> Result<Self> {
        let is_it = |pod: &&Value| pod.pointer("/metadata/name").is_some_and(|found| found == name);
        let pod = pods.iter().filter(|pod| pod["kind"] == "Pod").find(is_it);
        let pod = pod.with_context(|| format!("no pod {name}"))?;
        let [container] = list(pod, "/spec/containers")? else { anyhow::bail!("not one container: {pod}") };
        ensure!(container.pointer("/securityContext/runAsUser") == Some(&65534.into()), "{container}");
        ensure!(strings(container, "/securityContext/capabilities/drop")? == ["ALL"], "{container}");
        let mut words = strings(container, "/command")?;
        if container.get("args").is_some() {
            words.extend(strings(container, "/args")?);
        }
        let variable = |entry: &Value| Ok((text(entry, "/name")?.to_owned(), text(entry, "/value")?.to_owned()));
        let variables = list(container, "/env")?.iter().map(variable).collect::<Result<_>>()?;
        Ok(Self { words, variables })
    }

    /// Command of the container on `host`, as nobody. A pod's `/dev/shm` and `/tmp` are everybody's.
    fn command(&self, host: &Host, folder: &Path) -> Result<Command> {
        host.run("chmod", &["1777", "/dev/shm"])?;
        // SAFETY: `geteuid` has no preconditions.
        let root = unsafe { libc::geteuid() } == 0;
        // Elsewhere the test's user is the only one there is.
        let prefix = if root { &NOBODY[..] } else { &[] };
        let words: Vec<&str> = prefix.iter().copied().chain(self.words.iter().map(String::as_str)).collect();
        let mut command = host.command(words[0]);
        command.args(&words[1..]).env("PATH", search_path(folder)?).env("TMPDIR", "/tmp");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}

/// Gives a pod its `eth0`: a veth pair to the node, which routes.
fn plug(node: &Host, pod: &Host, number: u8) -> Result<String> {
    let (end, pid) = (format!("veth-{number}"), pod.pid().to_string());
    let (gateway, address) = (format!("10.244.{number}.1"), format!("10.244.{number}.2"));
    node.run("ip", &["link", "add", &end, "type", "veth", "peer", "name", "eth0", "netns", &pid])?;
    node.run("ip", &["address", "add", &format!("{gateway}/24"), "dev", &end])?;
    node.run("ip", &["link", "set", &end, "up"])?;
    pod.run("ip", &["address", "add", &format!("{address}/24"), "dev", "eth0"])?;
    pod.run("ip", &["link", "set", "eth0", "up"])?;
    pod.run("ip", &["route", "add", "default", "via", &gateway])?;
    // The kernel tells its state a moment later; a pod's containers start long after that.
    wait_until("eth0 is up", || Ok(pod.run("ip", &["link", "show", "eth0"])?.stdout.contains("state UP")))?;
    Ok(address)
}

#[test]
fn two_pods_talk() -> Result<()> {
    let pods = recipe("pods.yaml")?;
    let [service] = &pods.iter().filter(|pod| pod["kind"] == "Service").collect::<Vec<_>>()[..] else {
        anyhow::bail!("not one service: {pods:?}")
    };
    ensure!(text(service, "/metadata/name")? == "rdma-server");
    let labels = pods.iter().filter_map(|pod| pod.pointer("/metadata/labels"));
    ensure!(labels.collect::<Vec<_>>() == [&service["spec"]["selector"]], "the service selects other pods");

    let world = World::bare()?;
    let node = world.host();
    let (server, client) = (world.add_machine("server")?, world.add_machine("client")?);
    let address = plug(node, &server, 1)?;
    plug(node, &client, 2)?;
    node.run("sh", &["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])?;

    let folder = readable_copy()?;
    let listening = server.start(Container::of(&pods, "rdma-server")?.command(&server, folder.path())?)?;
    let mut container = Container::of(&pods, "rdma-client")?;
    // The service's name, where there is no DNS.
    let name = container.variables.iter_mut().find(|(name, value)| name == "SERVER" && value == "rdma-server");
    name.context("the client names no server")?.1 = address;
    let connected = client.start(container.command(&client, folder.path())?)?.finish(TIMEOUT)?;
    if !connected.status.success() {
        // What the server says is the reason; it may wait for ever.
        listening.signal(libc::SIGTERM)?;
    }
    let served = listening.finish(TIMEOUT)?;
    for end in [&connected, &served] {
        ensure!(end.status.success(), "{connected}\n{served}");
        ensure!(end.stdout.contains("BW average[MB/sec]"), "{connected}\n{served}");
    }
    // Nothing was installed, and nothing stays.
    for pod in [&server, &client] {
        for dir in ["dev/infiniband", "var/lib/urxe", "etc/libibverbs.d/urxe.driver"] {
            ensure!(!pod.root().join(dir).exists(), "{dir} in a pod");
        }
    }
    Ok(())
}

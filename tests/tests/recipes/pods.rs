//! The DaemonSet of docs/guide/containers.md, and pods beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urxe_tests::{Host, TIMEOUT, World, artifacts, copy_program, wait_until};

use crate::{documents, list, read, recipe, search_path, strings, text};

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

/// `urxe` and `liburxe.so` in a folder that every user can read.
fn readable_copy() -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new().prefix("recipes-").tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    for name in ["urxe", "liburxe.so"] {
        copy_program(artifacts::bin_dir()?.join(name), dir.path().join(name))?;
    }
    Ok(dir)
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

//! README: its commands run, from those that get urxe to those of every day, and so do the C program and the lines for Python and Cargo.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Finished, Host, Process, TIMEOUT, World, artifacts, wait_until, write_program};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn read(file: &str) -> Result<String> {
    let path = Path::new(REPOSITORY).join(file);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

fn readme() -> Result<String> {
    read("README.md")
}

/// Lines of README's code blocks that start with `start`.
fn lines<'a>(text: &'a str, start: &'a str) -> Vec<&'a str> {
    text.lines().filter(move |line| line.starts_with(start)).collect()
}

/// Code in the row of "Every day" with this head.
fn every_day<'a>(text: &'a str, head: &str) -> Result<Vec<&'a str>> {
    let start = format!("| {head} | ");
    let row = text.lines().find(|line| line.starts_with(&start)).with_context(|| format!("no row {start:?}"))?;
    Ok(row.split('`').skip(1).step_by(2).collect())
}

/// Starts a line of README on a host, in a folder, with `first` in front of the PATH.
fn start(host: &Host, folder: &Path, first: &str, line: &str) -> Result<Process> {
    let mut command = host.command("sh");
    // Hosts of tests start in the root folder.
    command.args(["-ec", &format!("cd '{}'; {line}", folder.display())]);
    command.env("PATH", format!("{first}:/usr/bin:{}", std::env::var("PATH")?));
    host.start(command)
}

fn bin_dir() -> Result<&'static str> {
    artifacts::bin_dir()?.to_str().context("a path that is not UTF-8")
}

/// Runs a line of README in a folder, with `urxe` on the PATH.
fn run(world: &World, folder: &Path, line: &str) -> Result<String> {
    Ok(start(world.host(), folder, bin_dir()?, line)?.finish(TIMEOUT)?.success()?.stdout)
}

/// Compiles the C program, by its line, to `hello` in the world's folder.
fn hello(world: &World, text: &str) -> Result<()> {
    let (_, rest) = text.split_once("```c\n").context("no C program")?;
    let program = rest.split_once("\n```\n").context("no end of the C program")?.0;
    fs::write(world.dir().join("hello.c"), program)?;
    let [compile] = lines(text, "cc ")[..] else { anyhow::bail!("not one compile line") };
    run(world, world.dir(), compile).map(drop)
}

/// A folder with commands, which stand for those that would change the machine.
fn commands(world: &World, scripts: &[(&str, &str)]) -> Result<PathBuf> {
    let folder = world.dir().join("commands");
    fs::create_dir(&folder)?;
    for (name, script) in scripts {
        write_program(folder.join(name), format!("#!/bin/sh\n{script}\n"))?;
    }
    Ok(folder)
}

#[test]
fn the_compiler_that_is_named_is_the_oldest_that_builds() -> Result<()> {
    let manifest = read("Cargo.toml")?;
    let oldest = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let wanted = format!("Rust {} or newer", oldest.context("no rust-version in Cargo.toml")?);
    for page in ["README.md", "docs/guide/install.md"] {
        ensure!(read(page)?.contains(&wanted), "{page} does not say {wanted:?}");
    }
    Ok(())
}

/// Each way of "Get it", from its line to the first command of "First run". The packages are of what is tested: nothing is built here,
/// and nothing is installed outside of the world.
#[test]
fn each_line_of_get_it_gives_the_command() -> Result<()> {
    let text = readme()?;
    let lines = lines(&text, "make ");
    let [deb, wheel, tarball] = lines[..] else { anyhow::bail!("not three lines: {lines:?}") };
    let first_run = "urxe run -- ibv_devices";
    let printed = text.split_once(&format!("$ {first_run}\n")).and_then(|(_, rest)| rest.split_once("\n$ "));
    let printed: Vec<&str> = printed.context("no output of the first command")?.0.split_whitespace().collect();

    let world = World::bare()?;
    let host = world.host();
    // Where a tarball goes is the machine's.
    host.run("mount", &["-t", "tmpfs", "tmpfs", "/usr/local"])?;
    let checkout = world.dir().join("checkout");
    fs::create_dir_all(checkout.join("target"))?;
    let (tree, venv) = (world.dir().join("tree"), world.dir().join("venv"));
    let made = Command::new("python3").args(["-m", "venv"]).arg(&venv).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let make = format!(
        "/usr/bin/make --dry-run --directory '{REPOSITORY}' \"$1\" CARGO=true >/dev/null\n\
         exec '{REPOSITORY}/packaging/'\"$1\" '{}' target/packages",
        bin_dir()?
    );
    let unpack = format!("[ \"$1\" = install ] && exec dpkg-deb --extract \"$2\" '{}'", tree.display());
    let commands = commands(&world, &[("make", &make), ("sudo", "exec \"$@\""), ("apt-get", &unpack)])?;
    for (line, folder) in
        [(deb, tree.join("usr/bin")), (wheel, venv.join("bin")), (tarball, Path::new("/usr/local/bin").to_owned())]
    {
        let folder = folder.to_str().context("a path that is not UTF-8")?;
        // Wheels need nothing of an index.
        let line = format!("export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1; {line}");
        start(host, &checkout, &format!("{}:{folder}", commands.display()), &line)?.finish(TIMEOUT)?.success()?;
        let said = start(host, world.dir(), folder, &format!("command -v urxe; {first_run}"))?;
        let said = said.finish(TIMEOUT)?.success()?;
        let (command, devices) = said.stdout.split_once('\n').context("no command")?;
        ensure!(command == format!("{folder}/urxe"), "{line}: {said}");
        ensure!(devices.split_whitespace().eq(printed.iter().copied()), "not what README shows, {printed:?}: {said}");
    }
    Ok(())
}

#[test]
fn hello_rdma_compiles_and_runs() -> Result<()> {
    let text = readme()?;
    let world = World::bare()?;
    hello(&world, &text)?;
    let output = run(&world, world.dir(), "urxe run -- ./hello")?;
    ensure!(output == "success: hello, RDMA\n", "{output}");
    ensure!(text.contains("\nurxe run -- ./hello\n"));
    let said = run(&world, world.dir(), "./hello 2>&1 && exit 1 || :")?;
    ensure!(said == "no RDMA device: start it with `urxe run -- ./hello`\n", "{said}");
    // Its queue pair is connected with itself.
    let drawn = run(&world, world.dir(), "urxe run --pcap it.pcapng -- ./hello; urxe trace it.pcapng")?;
    let has = |words: [&str; 2]| drawn.lines().any(|line| words.iter().all(|word| line.contains(word)));
    ensure!(has(["RC RDMA WRITE Only", "->|"]) && has(["|<-", "RC Acknowledge"]), "{drawn}");
    Ok(())
}

#[test]
fn pyverbs_finds_the_device() -> Result<()> {
    let text = readme()?;
    let [line] = lines(&text, "urxe run -- /usr/bin/python3")[..] else { anyhow::bail!("not one line for pyverbs") };
    let world = World::bare()?;
    let output = run(&world, world.dir(), line)?;
    ensure!(output.contains("Node guid"), "{output}");
    Ok(())
}

#[test]
fn cargo_runs_tests_below_urxe() -> Result<()> {
    let text = readme()?;
    let [line] = lines(&text, "CARGO_TARGET_")[..] else { anyhow::bail!("not one line for Cargo") };
    let world = World::bare()?;
    let crate_dir = world.dir().join("crate");
    fs::create_dir_all(crate_dir.join("src"))?;
    fs::write(crate_dir.join("Cargo.toml"), "[package]\nname = \"it\"\nedition = \"2021\"\n\n[workspace]\n")?;
    let test = "#[test]\nfn device() { assert!(std::path::Path::new(\"/sys/class/infiniband/urxe0\").exists()); }\n";
    fs::write(crate_dir.join("src/lib.rs"), test)?;
    // Another processor has another name in the variable.
    let host = format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", std::env::consts::ARCH.to_uppercase());
    let line = line.replace("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", &host);
    let target = crate_dir.join("target");
    let line = format!("CARGO_TARGET_DIR='{}' {line} --offline --lib", target.display());
    let output = run(&world, &crate_dir, &line)?;
    ensure!(output.contains("1 passed"), "{output}");
    Ok(())
}

#[test]
fn the_ping_pong_of_the_first_run_ends() -> Result<()> {
    let text = readme()?;
    let [line] = lines(&text, "$ urxe run -- sh -c")[..] else { anyhow::bail!("not one first run") };
    let world = World::bare()?;
    // The line is for a person; a test waits for the listener.
    let line = line
        .trim_start_matches("$ ")
        .replace("sleep 1; ibv_rc", "until ss -Hltn 'sport = :18515' | grep -q .; do sleep 0.1; done; ibv_rc");
    let line = line.replace("sh -c '", "sh -c \"").trim_end_matches('\'').to_owned() + "\"";
    let output = run(&world, world.dir(), &line)?;
    ensure!(output.contains("bytes in"), "{output}");
    Ok(())
}

/// Two hosts on a cable.
#[test]
fn two_hosts_measure() -> Result<()> {
    let text = readme()?;
    let [server, client] = every_day(&text, "two hosts")?[..] else { anyhow::bail!("not a server and a client") };
    let world = World::bare()?;
    let other = world.add_host()?;
    world.link(world.host(), &other, 1500)?;
    let line = |line: &str| line.replace("eth0", "veth0").replace("ADDRESS", &world.host().address());
    let listening = start(world.host(), world.dir(), bin_dir()?, &line(server))?;
    // A person starts the client when the server listens.
    let connect = format!("until {}; do sleep 0.2; done", line(client));
    let connected = start(&other, world.dir(), bin_dir()?, &connect)?.finish(TIMEOUT)?.success()?;
    let served = listening.finish(TIMEOUT)?.success()?;
    for end in [connected, served] {
        ensure!(end.stdout.contains("BW average[MB/sec]"), "{end}");
    }
    Ok(())
}

#[test]
fn failures_are_explained_and_captured_and_networks_made_bad() -> Result<()> {
    let text = readme()?;
    let [run_it, trace] = every_day(&text, "something fails")?[..] else { anyhow::bail!("not two commands") };
    let world = World::bare()?;
    hello(&world, &text)?;
    let output = run(&world, world.dir(), &run_it.replace("PROGRAM", "./hello"))?;
    ensure!(output == "success: hello, RDMA\n", "{output}");
    let drawn = run(&world, world.dir(), trace)?;
    ensure!(drawn.contains("RC RDMA WRITE Only"), "{drawn}");
    // The program with a mistake: its memory may not be written to by others.
    let program = fs::read_to_string(world.dir().join("hello.c"))?;
    let right = ", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)";
    ensure!(program.contains(right), "{program}");
    fs::write(world.dir().join("wrong.c"), program.replace(right, ", IBV_ACCESS_LOCAL_WRITE)"))?;
    let wrong = run_it.replace("PROGRAM", "./wrong");
    let said = run(&world, world.dir(), &format!("cc -o wrong wrong.c -libverbs; {wrong} 2>&1 || :"))?;
    ensure!(said.contains("the request needs IBV_ACCESS_REMOTE_WRITE"), "{said}");

    let [faults] = every_day(&text, "a bad network")?[..] else { anyhow::bail!("not one command") };
    let output = run(&world, world.dir(), &faults.replace("PROGRAM", "./hello"))?;
    ensure!(output == "success: hello, RDMA\n", "{output}");
    Ok(())
}

#[test]
fn a_server_is_fuzzed() -> Result<()> {
    let text = readme()?;
    let [serve, inject] = every_day(&text, "fuzz a server")?[..] else { anyhow::bail!("not two commands") };
    let world = World::bare()?;
    let sources = format!("{REPOSITORY}/docs/guide/fuzzing");
    let compile = format!("cc -o server '{sources}/kv_server.c' '{sources}/kv.c' -lrdmacm -libverbs");
    run(&world, world.dir(), &compile)?;
    // Else the shell would be killed at the end, and not the server.
    let server = start(world.host(), world.dir(), bin_dir()?, &format!("exec {serve}"))?;
    wait_until("the server listens", || Ok(server.stdout_so_far().contains("listening")))?;
    // A request without a value, in which nothing can become too long.
    fs::write(world.dir().join("get"), b"G\x05\0\0alpha")?;
    let inject = inject.replace("PORT", "7471").replace("MESSAGE", "get");
    // README's number takes minutes.
    ensure!(inject.contains(" 20000 "), "{inject}");
    let said = run(&world, world.dir(), &inject.replace(" 20000 ", " 200 "))?;
    ensure!(said.contains("200 executions, "), "{said}");
    drop(server);
    Ok(())
}

#[test]
fn the_whole_machine_finds_urxe() -> Result<()> {
    let text = readme()?;
    let [install, env, _, doctor, uninstall, _] = every_day(&text, "the whole machine")?[..] else {
        anyhow::bail!("not six pieces of code")
    };
    let world = World::bare()?;
    let commands = commands(&world, &[("sudo", "exec \"$@\"")])?;
    let first = format!("{}:{}", commands.display(), bin_dir()?);
    let line = format!("{install}\n{env}\nibv_devices\n{doctor}\n{uninstall}");
    let said: Finished = start(world.host(), world.dir(), &first, &line)?.finish(TIMEOUT)?.success()?;
    ensure!(said.stdout.contains("urxe0"), "{said}");
    ensure!(said.stdout.contains("installed  works"), "{said}");
    ensure!(!world.host().root().join("var/lib/urxe").exists(), "{said}");
    Ok(())
}

//! README: the C program compiles by its compile line and runs, as do the lines for Python and Cargo.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use urxe_tests::{TIMEOUT, World, artifacts};

fn readme() -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Lines of README's code blocks that start with `start`.
fn lines<'a>(text: &'a str, start: &'a str) -> Vec<&'a str> {
    text.lines().filter(move |line| line.starts_with(start)).collect()
}

/// Runs a line of README in a folder, with `urxe` on the PATH.
fn run(world: &World, folder: &Path, line: &str) -> Result<String> {
    let mut command = world.host().command("sh");
    let path = format!("{}:/usr/bin:{}", artifacts::bin_dir()?.display(), std::env::var("PATH")?);
    // Hosts of tests start in the root folder.
    command.args(["-ec", &format!("cd '{}'; {line}", folder.display())]).env("PATH", path);
    Ok(world.host().start(command)?.finish(TIMEOUT)?.success()?.stdout)
}

#[test]
fn hello_rdma_compiles_and_runs() -> Result<()> {
    let text = readme()?;
    let (_, rest) = text.split_once("```c\n").context("no C program")?;
    let program = rest.split_once("\n```\n").context("no end of the C program")?.0;
    let world = World::bare()?;
    fs::write(world.dir().join("hello.c"), program)?;
    let [compile] = lines(&text, "cc ")[..] else { anyhow::bail!("not one compile line") };
    run(&world, world.dir(), compile)?;
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

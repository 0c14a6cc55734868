//! Programs that are run on a host: one, two ends that find each other by a TCP port, or ranks of MPI.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use urxe_tests::{Finished, Host, Process, wait_for_listener};

/// Far more than any of these takes; what hangs must not stop the others.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a program as server and as client, both with `args` and `-p` a port of their own; what the client printed.
pub(crate) fn pair(host: &Host, program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Finished> {
    pair_on(host, program, args, env, false)
}

/// Starts a pair, each end on a processor of its own if they are to be `apart`.
pub(crate) fn pair_on(
    host: &Host,
    program: &str,
    args: &[&str],
    env: &[(&str, &str)],
    apart: bool,
) -> Result<Finished> {
    let port = host.next_port();
    let port_arg = port.to_string();
    let args = [args, &["-p", &port_arg]].concat();
    Ends { server: args.clone(), client: args, apart }.run(host, program, port, env)
}

/// The arguments of two ends; the client's are followed by the server's address.
pub(crate) struct Ends<'a> {
    pub(crate) server: Vec<&'a str>,
    pub(crate) client: Vec<&'a str>,
    /// Each keeps to a processor of its own.
    pub(crate) apart: bool,
}

impl Ends<'_> {
    /// Runs both, with these variables; what the client printed.
    pub(crate) fn run(&self, host: &Host, program: &str, port: u16, env: &[(&str, &str)]) -> Result<Finished> {
        let start = |args: &[&str], processor: &str| {
            let mut command = host.command(if self.apart { "taskset" } else { program });
            if self.apart {
                command.args(["-c", processor, program]);
            }
            command.args(args).envs(env.iter().copied());
            host.start(command)
        };
        let server = wait_for_listener(host, start(&self.server, "0")?, port)?;
        let client = start(&[&self.client[..], &["127.0.0.1"]].concat(), "1")?.finish(TIMEOUT);
        outcome(client, server)
    }
}

/// Runs a program as server and as client; false if it does not end within the time.
pub(crate) fn run_pair(
    host: &Host,
    program: &str,
    args: &[&str],
    env: &[(&str, &str)],
    limit: Duration,
) -> Result<bool> {
    let port = host.next_port();
    let port_arg = port.to_string();
    let start = |args: &[&str]| {
        let mut command = host.command(program);
        command.args(args).envs(env.iter().copied());
        host.start(command)
    };
    let args = [args, &["-p", &port_arg]].concat();
    // The server of ucx_perftest learns from the client what to do.
    let server = if program == "ucx_perftest" { start(&["-p", &port_arg])? } else { start(&args)? };
    let server = wait_for_listener(host, server, port)?;
    let begun = Instant::now();
    let client = start(&[&args[..], &["127.0.0.1"]].concat())?.finish(limit);
    if client.is_err() && begun.elapsed() >= limit {
        return Ok(false);
    }
    outcome(client, server).map(|_| true)
}

/// Runs an operation of `conformance/openmpi/exchange.py` with so many ranks, over these transports of UCX; false if it does not
/// end within the time.
pub(crate) fn run_ranks(
    host: &Host,
    ranks: usize,
    operation: &str,
    tls: &str,
    device: &str,
    limit: Duration,
) -> Result<bool> {
    let (ranks, script) = (
        ranks.to_string(),
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/openmpi/exchange.py"),
    );
    let mut command = host.command("mpirun");
    command.args(["-n", &ranks, "--oversubscribe", "--allow-run-as-root"]);
    let settings = [
        ("pml", "ucx"),
        ("osc", "ucx"),
        ("pml_ucx_tls", "any"),
        ("pml_ucx_devices", "any"),
        ("btl", "self"),
        ("coll", "^hcoll"),
        ("hwloc_base_binding_policy", "none"),
        ("plm", "isolated"),
    ];
    settings.iter().for_each(|(name, value)| _ = command.args(["--mca", name, value]));
    command.args(["/usr/bin/python3"]).arg(script).args([operation, "65536"]);
    command.envs([("UCX_TLS", tls), ("UCX_NET_DEVICES", device), ("UCX_WARN_UNUSED_ENV_VARS", "n")]);
    let begun = Instant::now();
    match host.start(command)?.finish(limit) {
        Err(_) if begun.elapsed() >= limit => Ok(false),
        finished => finished?.success().map(|_| true),
    }
}

fn outcome(client: Result<Finished>, server: Process) -> Result<Finished> {
    // A server whose client failed may wait for ever.
    let server = if client.as_ref().is_ok_and(|client| client.status.success()) {
        server.finish(TIMEOUT)
    } else {
        server.finish(Duration::from_millis(500))
    };
    match (client, server) {
        (Ok(client), Ok(server)) if client.status.success() && server.status.success() => Ok(client),
        (client, server) => bail!("client: {}\nserver: {}", describe(client), describe(server)),
    }
}

pub(crate) fn run(host: &Host, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Result<Finished> {
    host.spawn(program, args)?.finish(TIMEOUT)?.success()
}

fn describe(end: Result<Finished>) -> String {
    match end {
        Ok(finished) => finished.to_string(),
        Err(error) => format!("{error:#}"),
    }
}

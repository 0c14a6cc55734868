//! Frames over a cable between two hosts: programs of perftest over urxe, and bare sockets.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::raw_ethernet::{FAR, NEAR, cabled, is_ready, receivers};
use urxe_tests::{Host, Process, World, wait_until};

use crate::ends::TIMEOUT;
use crate::programs::Variables;

/// Seconds that are measured, and for how long frames are sent.
const SECONDS: &str = "2";
const LONGER: &str = "4";

/// Receiver of frames that come as fast as they can be sent.
#[derive(Debug, Clone, Copy)]
pub enum Raw {
    /// `raw_ethernet_bw` at both ends, with this size of frames.
    Perftest(&'static str, Variables),
    /// `bare-ethernet` at both ends: the ring of a packet socket.
    Ring(&'static str),
    /// `bare-ethernet` at both ends: a socket of AF_XDP receives.
    Xdp(&'static str),
}

impl Raw {
    /// Whether the program loads eBPF code, for which a user namespace has not the rights.
    pub fn needs_root(&self) -> bool {
        match self {
            Self::Perftest(_, variables) => variables.contains(&("URXE_RAW", "xdp")),
            Self::Ring(_) => false,
            Self::Xdp(_) => true,
        }
    }

    /// Returns the command line of the receiver.
    pub fn describe(&self) -> String {
        match self {
            Self::Perftest(size, variables) => {
                format!("{}raw_ethernet_bw -s {size} -D {SECONDS}", crate::programs::assignments(variables))
            }
            Self::Ring(size) => format!("bare-ethernet receive ring veth0 {size}"),
            Self::Xdp(size) => format!("bare-ethernet receive xdp veth0 {size}"),
        }
    }

    /// Runs both ends, each on a processor of its own. Returns 10^6 frames a second that were received, and Gbit/s.
    pub fn run(&self) -> Result<Vec<f64>> {
        let (world, other) = cabled()?;
        let (rate, size) = match self {
            Self::Perftest(size, variables) => (perftest(&world, &other, size, variables)?, size),
            Self::Ring(size) => (bare(&world, &other, "ring", size)?, size),
            Self::Xdp(size) => (bare(&world, &other, "xdp", size)?, size),
        };
        Ok(vec![rate, rate * size.parse::<f64>()? * 8.0 / 1e3])
    }
}

/// Starts a program on a processor.
fn start(host: &Host, processor: &str, program: &str, args: &[&str], env: Variables) -> Result<Process> {
    let mut command = host.command("taskset");
    command.args(["-c", processor, program]).args(args).envs(env.iter().copied());
    host.start(command)
}

/// Ends a sender, which is of no more use.
fn end(sender: Process) -> Result<()> {
    sender.signal(libc::SIGKILL)?;
    sender.finish(TIMEOUT).map(drop)
}

fn perftest(world: &World, other: &Host, size: &str, variables: Variables) -> Result<f64> {
    let args = |role, own, peer, seconds| [role, "-d", "urxe0", "-B", own, "-E", peer, "-s", size, "-D", seconds];
    let mut server = start(other, "0", "raw_ethernet_bw", &args("--server", FAR, NEAR, SECONDS), variables)?;
    wait_until("the server has rules", || {
        ensure!(server.is_running()?, "the server ended: {}", server.stderr_so_far());
        Ok(receivers(other)? > 0)
    })?;
    // Requests are posted by 64, as many as the bare sender hands over at once.
    let client = [&args("--client", NEAR, FAR, LONGER)[..], &["-l", "64"]].concat();
    let client = start(world.host(), "1", "raw_ethernet_bw", &client, &[])?;
    let said = server.finish(TIMEOUT)?.success()?.stdout;
    end(client)?;
    // `#bytes #iterations BW-peak BW-average MsgRate`
    let mut lines = said.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
    let rate = lines.next().and_then(|line| line.split_whitespace().nth(4)?.parse().ok());
    rate.with_context(|| format!("no rate: {said}"))
}

fn bare(world: &World, other: &Host, by: &str, size: &str) -> Result<f64> {
    let program = std::env::current_exe()?.with_file_name("bare-ethernet");
    let program = program.to_str().context("a path that is no text")?;
    let receiver = start(other, "0", program, &["receive", by, "veth0", size, SECONDS], &[])?;
    is_ready(&receiver)?;
    let sender = start(world.host(), "1", program, &["send", "ring", "veth0", size, LONGER], &[])?;
    let said = receiver.finish(Duration::from_secs(60))?.success()?.stdout;
    end(sender)?;
    said.lines().last().and_then(|line| line.parse().ok()).with_context(|| format!("no rate: {said}"))
}

//! `ibv_rc_pingpong`: both ends.

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Finished, Process, TIMEOUT};
use crate::procfs;
use crate::world::{Host, wait_until};

/// GID index of the default GID.
pub const GID_DEFAULT: u32 = 0;
/// GID index of the interface's first IPv4 address.
pub const GID_IPV4: u32 = 1;
/// GID index of the first IPv6 address where there is one IPv4 address, as on every host of a world.
pub const GID_IPV6: u32 = 2;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct PingPong {
    /// Bytes of a message.
    pub size: u64,
    /// Path MTU.
    pub mtu: u32,
    /// Exchanges.
    pub iters: u32,
    /// `-e`: sleep on completion events instead of polling.
    pub events: bool,
    /// `-c`: the server compares the buffer.
    pub validate: bool,
    /// GID index at both ends.
    pub gid: u32,
}

impl Default for PingPong {
    fn default() -> Self {
        Self { size: 4096, mtu: 1024, iters: 1000, events: false, validate: false, gid: GID_IPV4 }
    }
}

/// A server and its client, running.
#[derive(Debug)]
pub struct Pair {
    /// Options.
    pub options: PingPong,
    /// The end that was started first, and receives first.
    pub server: Process,
    /// The end that sends first.
    pub client: Process,
}

impl PingPong {
    /// Runs both ends to their successful end and checks what they print.
    pub fn run(&self, server: &Host, client: &Host) -> Result<()> {
        self.start(server, client)?.finish()
    }

    /// Runs both ends as [`run`](Self::run) does where packets are lost: again, if that was the [last ACK](Pair::finish_despite_loss).
    pub fn run_despite_loss(&self, server: &Host, client: &Host) -> Result<()> {
        // One run in fifty loses it.
        for _ in 0..4 {
            if self.start(server, client)?.finish_despite_loss()? {
                return Ok(());
            }
        }
        bail!("no run in four came to its end")
    }

    /// Starts both ends.
    pub fn start(&self, server: &Host, client: &Host) -> Result<Pair> {
        self.start_with(server, client, || ())
    }

    /// Starts both ends, and does something between the one and the other.
    pub fn start_with(&self, server: &Host, client: &Host, between: impl FnOnce()) -> Result<Pair> {
        let port = server.next_port();
        let process = server.start(self.command(server, port))?;
        let process = wait_for_listener(server, process, port)?;
        between();
        let mut command = self.command(client, port);
        command.arg(server.address());
        Ok(Pair { options: self.clone(), server: process, client: client.start(command)? })
    }

    fn command(&self, host: &Host, port: u16) -> std::process::Command {
        let Self { size, mtu, iters, events, validate, gid } = self;
        let mut command = host.command("ibv_rc_pingpong");
        command.args(["-d", "urxe0", "-p", &port.to_string(), "-g", &gid.to_string()]);
        command.args(["-s", &size.to_string(), "-m", &mtu.to_string(), "-n", &iters.to_string()]);
        command.args(events.then_some("-e")).args(validate.then_some("-c"));
        command
    }
}

impl Pair {
    /// Waits for both ends, which must succeed and have exchanged everything.
    pub fn finish(self) -> Result<()> {
        let Self { options, server, client } = self;
        // Both before judging one: the error of the end that failed first is often the other's.
        let (client, server) = (client.finish(TIMEOUT), server.finish(TIMEOUT));
        let result = match (&client, &server) {
            (Ok(client), Ok(server)) => options.check(client).and_then(|()| options.check(server)),
            _ => bail!("{}\n{}", Finished::describe(&client), Finished::describe(&server)),
        };
        result.with_context(|| format!("{}\n{}", Finished::describe(&client), Finished::describe(&server)))
    }
}

impl Pair {
    /// Runs the pair on a network that loses packets. False if one end succeeded and the other's last SEND had no ACK: that
    /// ACK was lost, and whoever could repeat it has exited, having all it waited for. No implementation of RC can tell
    /// the other.
    pub fn finish_despite_loss(self) -> Result<bool> {
        let Self { options, server, client } = self;
        let (client, server) = (client.finish(TIMEOUT)?, server.finish(TIMEOUT)?);
        let forsaken = |end: &Finished, other: &Finished| {
            options.check(other).is_ok() && end.stderr.contains(LAST_ACK_LOST) && !end.status.success()
        };
        if forsaken(&client, &server) || forsaken(&server, &client) {
            return Ok(false);
        }
        let result = options.check(&client).and_then(|()| options.check(&server));
        result.map(|()| true).with_context(|| format!("{client}\n{server}"))
    }
}

/// Message of ibv_rc_pingpong when its SEND (work request 2) is never acknowledged.
const LAST_ACK_LOST: &str = "transport retry counter exceeded (12) for wr_id 2";

impl PingPong {
    fn check(&self, end: &Finished) -> Result<()> {
        ensure!(end.status.success(), "an end failed");
        let bytes = self.size * u64::from(self.iters) * 2;
        ensure!(end.stdout.contains(&format!("{bytes} bytes in ")), "an end did not exchange {bytes} bytes");
        ensure!(end.stdout.contains(&format!("{} iters in ", self.iters)), "an end did not print its figures");
        ensure!(!end.stdout.contains("invalid data"), "an end received wrong data");
        ensure!(end.stderr.is_empty(), "an end complained");
        Ok(())
    }
}

/// Runs both ends of one of the ping-pongs of libibverbs, server and client, to the success of both; returns what the client has
/// printed. Ends of `ibv_srq_pingpong` run again where the client is late.
///
/// That program posts up to 15 messages more than it counts. An end that has counted enough ends, and the other, if it has no
/// processor for half a second then, finds its surplus failed (`scnt` of srq_pingpong.c).
pub fn ping_pong(program: &str, mut run: impl FnMut() -> Result<(Finished, Finished)>) -> Result<Finished> {
    for _ in 0..4 {
        let (server, client) = run()?;
        let is_late = server.status.success() && client.stderr.contains(RETRY_EXC);
        if program == "ibv_srq_pingpong" && is_late {
            continue;
        }
        ensure!(client.status.success() && server.status.success(), "{client}\n{server}");
        return Ok(client);
    }
    bail!("{program}: the client is late again and again")
}

/// Message of the ping-pongs when a request is never acknowledged.
const RETRY_EXC: &str = "transport retry counter exceeded";

/// Waits until `process` accepts TCP connections; its early end is an error with all that it printed.
pub fn wait_for_listener(host: &Host, process: Process, port: u16) -> Result<Process> {
    let mut process = process;
    let mut ended = false;
    wait_until("the server listens", || {
        ended = !process.is_running()?;
        Ok(ended || procfs::is_listening(host, port)?)
    })?;
    if ended {
        bail!("the server ended instead of listening: {}", process.finish(TIMEOUT)?);
    }
    Ok(process)
}

//! perftest: both ends of one of its programs, which find each other by a TCP connection.

use anyhow::{Context as _, Result, bail};

use crate::pingpong::wait_for_listener;
use crate::process::{Finished, Process, TIMEOUT};
use crate::world::{Host, wait_until};

/// A server and its client, running.
#[derive(Debug)]
pub struct Perftest {
    /// The end that was started first.
    pub server: Process,
    /// The end that connects.
    pub client: Process,
}

impl Perftest {
    /// Starts both ends on `urxe0`, with the IPv4 GID and `args`, the client once the server listens.
    pub fn start(program: &str, args: &[&str], server: &Host, client: &Host) -> Result<Self> {
        let port = server.next_port();
        let (port_arg, address) = (port.to_string(), server.address());
        let args = [&["-d", "urxe0", "-x", "1", "-F", "-p", &port_arg], args].concat();
        let process = wait_for_listener(server, server.spawn(program, &args)?, port)?;
        Ok(Self { server: process, client: client.spawn(program, &[&args[..], &[&address]].concat())? })
    }

    /// Runs both ends to their successful end.
    pub fn run(program: &str, args: &[&str], server: &Host, client: &Host) -> Result<()> {
        Self::start(program, args, server, client)?.finish()
    }

    /// Ends both when `look` has seen enough of them: with `--run_infinitely` they go on till then.
    pub fn watch(self, what: &str, look: impl FnMut() -> Result<bool>) -> Result<()> {
        let seen = wait_until(what, look);
        for process in [self.client, self.server] {
            process.signal(libc::SIGKILL)?;
            let _ = process.finish(TIMEOUT);
        }
        seen
    }

    /// Waits for both ends, which must succeed.
    pub fn finish(self) -> Result<()> {
        self.output().map(drop)
    }

    /// Runs a pair of a program for bandwidth, with `--report_gbits`, and returns the average in Gbit/s.
    pub fn gigabits(self) -> Result<f64> {
        let stdout = self.output()?.stdout;
        // `#bytes #iterations BW-peak BW-average MsgRate`
        let mut lines = stdout.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
        let average = lines.nth(1).and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
        average.with_context(|| format!("no figures in {stdout}"))
    }

    /// Runs the pair and returns the client's output.
    pub fn output(self) -> Result<Finished> {
        // Both before judging one: the error of the end that failed first is often the other's.
        let (client, server) = (self.client.finish(TIMEOUT), self.server.finish(TIMEOUT));
        match (&client, &server) {
            (Ok(end), Ok(other)) if end.status.success() && other.status.success() => client,
            _ => bail!("{}\n{}", Finished::describe(&client), Finished::describe(&server)),
        }
    }
}

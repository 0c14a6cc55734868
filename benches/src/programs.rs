//! Programs that measure: how one is run on a host, and how its figures are read.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use urxe_tests::{Finished, Host, wait_for_listener};

/// Far more than any of these takes; what hangs must not stop the others.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Something that measures, over `lo` of a host.
#[derive(Debug)]
pub enum Program {
    /// Bare UDP by our own `bare-udp`.
    BareUdp {
        /// Its argument.
        what: &'static str,
    },
    /// One of perftest's, two processes over urxe.
    Perftest(Perftest),
    /// `ibv_rc_pingpong`, two processes over urxe.
    PingPong {
        /// Bytes of a message.
        size: u32,
        /// Exchanges.
        iters: u32,
    },
    /// `iperf3`: a TCP stream, two processes.
    Iperf3,
}

/// A program of perftest.
#[derive(Debug)]
pub struct Perftest {
    program: &'static str,
    args: &'static str,
    report: Report,
}

/// What is read from a line of perftest's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Report {
    /// `#bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%`: typical (the median) and 99 %.
    Latency,
    /// `#bytes #iterations BW-peak BW-average MsgRate`: the average.
    Bandwidth,
    /// The same: the message rate.
    Rate,
}

/// Options of all perftest programs: urxe0, GID of the IPv4 address, no advice about the processor's frequency.
const PERFTEST_OPTIONS: &str = "-d urxe0 -x 1 -F";

impl Perftest {
    /// A latency test: its median and 99th percentile, in µs.
    pub const fn latency(program: &'static str, args: &'static str) -> Self {
        Self { program, args, report: Report::Latency }
    }

    /// A bandwidth test: its average, in Gbit/s.
    pub const fn bandwidth(program: &'static str, args: &'static str) -> Self {
        Self { program, args, report: Report::Bandwidth }
    }

    /// A bandwidth test: its message rate, in 10^6 a second.
    pub const fn rate(program: &'static str, args: &'static str) -> Self {
        Self { program, args, report: Report::Rate }
    }

    fn run(&self, host: &Host) -> Result<Vec<f64>> {
        let mut args: Vec<&str> = PERFTEST_OPTIONS.split_whitespace().chain(self.args.split_whitespace()).collect();
        if self.report != Report::Latency {
            args.push("--report_gbits");
        }
        let client = pair(host, self.program, &args)?;
        self.report.read(&client.stdout).with_context(|| format!("reading {client}"))
    }
}

impl Report {
    fn read(self, stdout: &str) -> Result<Vec<f64>> {
        let mut lines = stdout.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
        let line = lines.next().context("no table of results")?;
        let columns: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        match (self, columns.as_slice()) {
            (Self::Latency, &[_, _, _, _, typical, _, _, p99, ..]) => Ok(vec![typical, p99]),
            (Self::Bandwidth, &[_, _, _, average, _, ..]) => Ok(vec![average]),
            (Self::Rate, &[_, _, _, _, rate, ..]) => Ok(vec![rate]),
            _ => bail!("unexpected columns: {line}"),
        }
    }
}

impl Program {
    /// The Debian package that has it; `None` for our own.
    pub fn package(&self) -> Option<&'static str> {
        match self {
            Self::BareUdp { .. } => None,
            Self::Perftest(_) => Some("perftest"),
            Self::PingPong { .. } => Some("ibverbs-utils"),
            Self::Iperf3 => Some("iperf3"),
        }
    }

    /// The executable: a name to be found in `PATH`, or the path of our own.
    pub fn executable(&self) -> Result<PathBuf> {
        Ok(match self {
            Self::BareUdp { .. } => std::env::current_exe()?.with_file_name("bare-udp"),
            Self::Perftest(perftest) => perftest.program.into(),
            Self::PingPong { .. } => "ibv_rc_pingpong".into(),
            Self::Iperf3 => "iperf3".into(),
        })
    }

    /// An error that says what to install when the executable is missing.
    pub fn find(&self) -> Result<()> {
        let executable = self.executable()?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Joining an absolute path replaces what it is joined to.
        if std::env::split_paths(&path).any(|dir| dir.join(&executable).is_file()) {
            return Ok(());
        }
        let executable = executable.display();
        match self.package() {
            Some(package) => bail!("{executable} is missing: apt install {package} (make bench does it)"),
            None => bail!("{executable} is missing: cargo build --release -p urxe-benches"),
        }
    }

    /// The command line, as a reader would type it.
    pub fn describe(&self) -> String {
        match self {
            Self::BareUdp { what } => format!("bare-udp {what}"),
            Self::Perftest(Perftest { program, args, .. }) => format!("{program} {args}"),
            Self::PingPong { size, iters } => format!("ibv_rc_pingpong -s {size} -n {iters}"),
            Self::Iperf3 => "iperf3 -t 1".to_owned(),
        }
    }

    /// Runs it to its end: its figures, in the order and unit in which [`crate::suite`] lists them.
    pub fn run(&self, host: &Host) -> Result<Vec<f64>> {
        match self {
            Self::BareUdp { what } => {
                let finished = run(host, self.executable()?, &[what])?;
                finished.stdout.split_whitespace().map(|word| Ok(word.parse()?)).collect()
            }
            Self::Perftest(perftest) => perftest.run(host),
            Self::PingPong { size, iters } => {
                let (size, iters) = (size.to_string(), iters.to_string());
                let args = ["-d", "urxe0", "-g", "1", "-s", &size, "-n", &iters];
                let client = pair(host, "ibv_rc_pingpong", &args)?;
                Ok(vec![half_round_trip(&client.stdout).with_context(|| format!("reading {client}"))?])
            }
            Self::Iperf3 => iperf3(host),
        }
    }
}

/// Half of the time that `ibv_rc_pingpong` prints for an exchange (`20000 iters in 0.19 seconds = 9.50 usec/iter`).
fn half_round_trip(stdout: &str) -> Result<f64> {
    let words: Vec<&str> = stdout.split_whitespace().collect();
    let unit = words.iter().position(|&word| word == "usec/iter").context("no usec/iter")?;
    let time: f64 = words[..unit].last().context("no time")?.parse()?;
    Ok(time / 2.0)
}

fn iperf3(host: &Host) -> Result<Vec<f64>> {
    let port = host.next_port();
    let port_arg = port.to_string();
    let server = wait_for_listener(host, host.spawn("iperf3", &["-s", "-1", "-p", &port_arg])?, port)?;
    let client = run(host, "iperf3", &["-c", "127.0.0.1", "-p", &port_arg, "-t", "1", "-J"])?;
    server.finish(TIMEOUT)?.success()?;
    let report: serde_json::Value = serde_json::from_str(&client.stdout).context("iperf3 -J")?;
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 -J reports no rate")?;
    Ok(vec![rate / 1e9])
}

/// Runs a program as server and as client, both with `args` and `-p` a port of their own; what the client printed.
fn pair(host: &Host, program: &str, args: &[&str]) -> Result<Finished> {
    let port = host.next_port();
    let port_arg = port.to_string();
    let args = [args, &["-p", &port_arg]].concat();
    let server = wait_for_listener(host, host.spawn(program, &args)?, port)?;
    let client = host.spawn(program, &[&args[..], &["127.0.0.1"]].concat())?.finish(TIMEOUT);
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

fn run(host: &Host, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Result<Finished> {
    host.spawn(program, args)?.finish(TIMEOUT)?.success()
}

fn describe(end: Result<Finished>) -> String {
    match end {
        Ok(finished) => finished.to_string(),
        Err(error) => format!("{error:#}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = "\
---------------------------------------------------------------------------------------
                    RDMA_Write Latency Test
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       20000          4.51           1120.97      4.92     \t       5.31        \t9.17   \t\t9.80    \t\t31.00
---------------------------------------------------------------------------------------
";

    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    1000             16.89              11.46  \t\t   0.001366
";

    #[test]
    fn perftest_tables_are_read() -> Result<()> {
        assert_eq!(Report::Latency.read(LATENCY)?, [4.92, 9.80]);
        assert_eq!(Report::Bandwidth.read(BANDWIDTH)?, [11.46]);
        assert_eq!(Report::Rate.read(BANDWIDTH)?, [0.001_366]);
        assert!(Report::Latency.read(BANDWIDTH).is_err());
        assert!(Report::Bandwidth.read("Couldn't connect to 127.0.0.1:18515\n").is_err());
        Ok(())
    }

    #[test]
    fn the_time_of_a_ping_pong_is_halved() -> Result<()> {
        let stdout = "320000 bytes in 0.10 seconds = 25.55 Mbit/sec\n20000 iters in 0.10 seconds = 5.01 usec/iter\n";
        assert_eq!(half_round_trip(stdout)?, 2.505);
        assert!(half_round_trip("").is_err());
        Ok(())
    }
}

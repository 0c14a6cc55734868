//! Programs that measure: with which arguments, and how their figures are read.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use urxe_tests::{Host, wait_for_listener};

use crate::ends::{Ends, TIMEOUT, pair, pair_on, run};
use crate::paths::Paths;
use crate::raw::Raw;

/// Program that measures, over `lo` of a host.
#[derive(Debug)]
pub enum Program {
    /// Program of this repository, which prints its figures.
    Own {
        /// `bare-udp` or `own-verbs`.
        program: &'static str,
        /// Arguments.
        args: &'static str,
        /// Variables of the program's environment.
        variables: Variables,
    },
    /// Program of perftest, two processes over urxe.
    Perftest(Perftest),
    /// `ibv_rc_pingpong`, two processes over urxe.
    PingPong {
        /// Bytes of a message.
        size: u32,
        /// Exchanges.
        iters: u32,
        /// A variable of both ends.
        variable: Option<(&'static str, &'static str)>,
    },
    /// `iperf3`: a TCP stream, two processes.
    Iperf3,
    /// `ucx_perftest`, two processes.
    Ucx(Ucx),
    /// Frames over a cable of their own.
    Raw(Raw),
    /// `ib_write_bw` over several paths of their own.
    Paths(Paths),
    /// `fi_pingpong` of libfabric over TCP, two processes.
    FiPingPong {
        /// Bytes of a message.
        size: u32,
        /// Exchanges.
        iters: u32,
    },
}

/// A test of `ucx_perftest` over a transport of UCX.
#[derive(Debug, Clone, Copy)]
pub struct Ucx {
    /// Value of `UCX_TLS`.
    tls: &'static str,
    /// Arguments of the client, from which the server learns them.
    args: &'static str,
    report: UcxReport,
}

/// Column read from the last line of `ucx_perftest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UcxReport {
    /// Median, in µs.
    Latency,
    /// Average over the run, in Gbit/s.
    Bandwidth,
    /// Average rate over the run, in 10^6 a second.
    Rate,
}

/// A program of perftest.
#[derive(Debug)]
pub struct Perftest {
    program: &'static str,
    args: &'static str,
    report: Report,
    /// Variables that both ends see.
    variables: Variables,
    /// Each end keeps to a processor of its own.
    apart: bool,
}

/// Variables of the environment, and their values.
pub type Variables = &'static [(&'static str, &'static str)];

/// Column read from a line of perftest's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Report {
    /// `#bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%`: typical (the median) and 99 %.
    Latency,
    /// `#bytes #iterations BW-peak BW-average MsgRate`: the average.
    Bandwidth,
    /// Message rate.
    Rate,
}

/// Options of all perftest programs: urxe0, GID of the IPv4 address, no advice about the processor's frequency.
const PERFTEST_OPTIONS: &str = "-d urxe0 -x 1 -F";

/// Has two processes of one host exchange packets through memory.
pub const SHARED_MEMORY: (&str, &str) = ("URXE_LOOPBACK", "shm");

impl Perftest {
    /// A latency test: its median and 99th percentile, in µs.
    pub const fn latency(program: &'static str, args: &'static str) -> Self {
        Self { program, args, report: Report::Latency, variables: &[], apart: false }
    }

    /// A bandwidth test: its average, in Gbit/s.
    pub const fn bandwidth(program: &'static str, args: &'static str) -> Self {
        Self { program, args, report: Report::Bandwidth, variables: &[], apart: false }
    }

    /// A bandwidth test: its message rate, in 10^6 a second.
    pub const fn rate(program: &'static str, args: &'static str) -> Self {
        Self { program, args, report: Report::Rate, variables: &[], apart: false }
    }

    /// Gives both ends variables that change urxe's behaviour.
    pub const fn with(self, variables: Variables) -> Self {
        Self { variables, ..self }
    }

    /// Pins each end to a processor of its own, so that the scheduler makes no difference.
    pub const fn apart(self) -> Self {
        Self { apart: true, ..self }
    }

    fn run(&self, host: &Host) -> Result<Vec<f64>> {
        let mut args: Vec<&str> = PERFTEST_OPTIONS.split_whitespace().chain(self.args.split_whitespace()).collect();
        if self.report != Report::Latency {
            args.push("--report_gbits");
        }
        let client = pair_on(host, self.program, &args, self.variables, self.apart)?;
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
            Self::Own { .. } | Self::Raw(Raw::Ring(_) | Raw::Xdp(_)) => None,
            Self::Ucx(_) => Some("ucx-utils"),
            Self::FiPingPong { .. } => Some("libfabric-bin"),
            Self::Perftest(_) | Self::Paths(_) | Self::Raw(Raw::Perftest(..)) => Some("perftest"),
            Self::PingPong { .. } => Some("ibverbs-utils"),
            Self::Iperf3 => Some("iperf3"),
        }
    }

    /// The executable: a name to be found in `PATH`, or the path of our own.
    pub fn executable(&self) -> Result<PathBuf> {
        Ok(match self {
            Self::Own { program, .. } => std::env::current_exe()?.with_file_name(program),
            Self::Raw(Raw::Ring(_) | Raw::Xdp(_)) => std::env::current_exe()?.with_file_name("bare-ethernet"),
            Self::Raw(Raw::Perftest(..)) => "raw_ethernet_bw".into(),
            Self::Ucx(_) => "ucx_perftest".into(),
            Self::FiPingPong { .. } => "fi_pingpong".into(),
            Self::Perftest(perftest) => perftest.program.into(),
            Self::Paths(_) => "ib_write_bw".into(),
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

    /// Whether a user namespace has not the rights that it needs.
    pub fn needs_root(&self) -> bool {
        matches!(self, Self::Raw(raw) if raw.needs_root())
    }

    /// The command line, as a reader would type it.
    pub fn describe(&self) -> String {
        match self {
            Self::Own { program, args, variables } => format!("{}{program} {args}", assignments(variables)),
            Self::Perftest(Perftest { program, args, variables, .. }) => {
                format!("{}{program} {args}", assignments(variables))
            }
            Self::PingPong { size, iters, variable } => {
                format!("{}ibv_rc_pingpong -s {size} -n {iters}", assignments(variable.as_slice()))
            }
            Self::Iperf3 => "iperf3 -t 1".to_owned(),
            Self::Raw(raw) => raw.describe(),
            Self::Paths(paths) => paths.describe(),
            Self::Ucx(Ucx { tls, args, .. }) => format!("UCX_TLS={tls} ucx_perftest {args}"),
            Self::FiPingPong { size, iters } => format!("fi_pingpong -p tcp -e rdm -S {size} -I {iters}"),
        }
    }

    /// Runs it to its end: its figures, in the order and unit in which [`crate::suite`] lists them.
    pub fn run(&self, host: &Host) -> Result<Vec<f64>> {
        match self {
            Self::Own { program, args, variables } => {
                own_with(host, program, &args.split_whitespace().collect::<Vec<_>>(), variables)
            }
            Self::Perftest(perftest) => perftest.run(host),
            Self::PingPong { size, iters, variable } => {
                let (size, iters) = (size.to_string(), iters.to_string());
                let args = ["-d", "urxe0", "-g", "1", "-s", &size, "-n", &iters];
                let client = pair(host, "ibv_rc_pingpong", &args, variable.as_slice())?;
                Ok(vec![half_round_trip(&client.stdout).with_context(|| format!("reading {client}"))?])
            }
            Self::Iperf3 => iperf3(host, &[]),
            Self::Ucx(test) => test.run(host),
            Self::Raw(raw) => raw.run(),
            Self::Paths(paths) => paths.run(),
            Self::FiPingPong { size, iters } => fi_pingpong(host, *size, *iters),
        }
    }
}

/// A figure that depends on something.
#[derive(Debug, Clone, Copy)]
pub enum Measurement {
    /// A program of perftest, over the size of messages.
    Perftest(&'static str),
    /// Program through shared memory.
    SharedMemory(&'static str),
    /// Program on a network that loses so many percent, in each direction, whose ends see these variables as well.
    Lossy(&'static str, f64, Variables),
    /// `iperf3`, over the size of writes.
    Tcp,
    /// A figure of `own-verbs`, by its place, over how many of what it is about.
    Own(&'static str, usize),
    /// Program through shared memory.
    OwnSharedMemory(&'static str, usize),
    /// Program whose queue pairs all share the device's sockets.
    OwnUnsharded(&'static str, usize),
}

impl Measurement {
    /// Gbit/s at this size, or the figure for so many.
    pub fn at(self, host: &Host, size: u32) -> Result<f64> {
        let perftest = |program: &str, bytes: u32, env: &[(&str, &str)]| {
            // perftest keeps 128 requests outstanding, and wants no fewer in all.
            let iters = (bytes / size).clamp(200, 200_000).to_string();
            let options = ["--report_gbits", "-s", &size.to_string(), "-n", &iters];
            let args: Vec<&str> = PERFTEST_OPTIONS.split_whitespace().chain(options).collect();
            let client = pair(host, program, &args, env)?;
            Report::Bandwidth.read(&client.stdout).with_context(|| format!("reading {client}"))
        };
        let figures = match self {
            Self::Perftest(program) => perftest(program, 512 << 20, &[]),
            Self::SharedMemory(program) => perftest(program, 512 << 20, &[SHARED_MEMORY]),
            Self::Lossy(program, percent, variables) => {
                let faults = format!("drop={percent}%,dir=tx,seed=1");
                perftest(program, 1 << 30, &[&[("URXE_FAULTS", faults.as_str())][..], variables].concat())
            }
            Self::Tcp => iperf3(host, &["-l", &size.min(1 << 20).to_string()]),
            Self::Own(what, _) => own_with(host, "own-verbs", &[what, &size.to_string()], &[]),
            Self::OwnSharedMemory(what, _) => own_with(host, "own-verbs", &[what, &size.to_string()], &[SHARED_MEMORY]),
            Self::OwnUnsharded(what, _) => {
                own_with(host, "own-verbs", &[what, &size.to_string()], &[("URXE_SHARDS", "1")])
            }
        };
        let place = match self {
            Self::Own(_, place) | Self::OwnSharedMemory(_, place) | Self::OwnUnsharded(_, place) => place,
            _ => 0,
        };
        figures?.get(place).copied().context("no figure")
    }
}

/// A ping-pong whose every exchange is told.
#[derive(Debug, Clone, Copy)]
pub enum Ping {
    /// Bare UDP, both ends polling.
    BareUdp,
    /// A latency test of perftest.
    Perftest(&'static str),
    /// Program through shared memory.
    SharedMemory(&'static str),
}

impl Ping {
    /// µs in one direction, of each of 10 000 exchanges.
    pub fn times(self, host: &Host) -> Result<Vec<f64>> {
        let (program, env) = match self {
            Self::BareUdp => return own_with(host, "bare-udp", &["exchanges"], &[]),
            Self::Perftest(program) => (program, None),
            Self::SharedMemory(program) => (program, Some(SHARED_MEMORY)),
        };
        let options = ["-s", "8", "-n", "10000", "-U"];
        let args: Vec<&str> = PERFTEST_OPTIONS.split_whitespace().chain(options).collect();
        let client = pair(host, program, &args, env.as_slice())?;
        // `number, µs` for each exchange.
        let time = |line: &str| line.split_once(", ").and_then(|(_, time)| time.trim().parse().ok());
        let times: Vec<f64> = client.stdout.lines().filter_map(time).collect();
        ensure!(times.len() > 9000, "{} exchanges in {client}", times.len());
        Ok(times)
    }
}

/// The figures of a program of our own.
fn own_with(host: &Host, program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Vec<f64>> {
    let mut command = host.command(std::env::current_exe()?.with_file_name(program));
    command.args(args).envs(env.iter().copied());
    let finished = host.start(command)?.finish(TIMEOUT)?.success()?;
    finished.stdout.split_whitespace().map(|word| Ok(word.parse()?)).collect()
}

/// Half of the time that `ibv_rc_pingpong` prints for an exchange (`20000 iters in 0.19 seconds = 9.50 usec/iter`).
fn half_round_trip(stdout: &str) -> Result<f64> {
    let words: Vec<&str> = stdout.split_whitespace().collect();
    let unit = words.iter().position(|&word| word == "usec/iter").context("no usec/iter")?;
    let time: f64 = words[..unit].last().context("no time")?.parse()?;
    Ok(time / 2.0)
}

fn iperf3(host: &Host, options: &[&str]) -> Result<Vec<f64>> {
    let port = host.next_port();
    let port_arg = port.to_string();
    let server = wait_for_listener(host, host.spawn("iperf3", &["-s", "-1", "-p", &port_arg])?, port)?;
    let client = run(host, "iperf3", &[&["-c", "127.0.0.1", "-p", &port_arg, "-t", "1", "-J"], options].concat())?;
    server.finish(TIMEOUT)?.success()?;
    let report: serde_json::Value = serde_json::from_str(&client.stdout).context("iperf3 -J")?;
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 -J reports no rate")?;
    Ok(vec![rate / 1e9])
}

/// Variables as a shell takes them before a command.
pub(crate) fn assignments(variables: &[(&str, &str)]) -> String {
    variables.iter().map(|(name, value)| format!("{name}='{value}' ")).collect()
}

impl Ucx {
    /// A latency test: its median, in µs.
    pub const fn latency(tls: &'static str, args: &'static str) -> Self {
        Self { tls, args, report: UcxReport::Latency }
    }

    /// A bandwidth test: its average, in Gbit/s.
    pub const fn bandwidth(tls: &'static str, args: &'static str) -> Self {
        Self { tls, args, report: UcxReport::Bandwidth }
    }

    /// A bandwidth test: its message rate, in 10^6 a second.
    pub const fn rate(tls: &'static str, args: &'static str) -> Self {
        Self { tls, args, report: UcxReport::Rate }
    }

    fn run(self, host: &Host) -> Result<Vec<f64>> {
        let env = [("UCX_TLS", self.tls), ("UCX_NET_DEVICES", "lo"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];
        // -f -v: the last line alone, separated by commas.
        let port = host.next_port().to_string();
        let client = ["-p", &port, "-f", "-v"].into_iter().chain(self.args.split_whitespace()).collect();
        let ends = Ends { server: vec!["-p", &port], client, apart: false };
        let client = ends.run(host, "ucx_perftest", port.parse()?, &env)?;
        self.report.read(&client.stdout).with_context(|| format!("reading {client}"))
    }
}

impl UcxReport {
    /// `iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_rate,overall_rate`: µs, 2^20 bytes and messages a
    /// second.
    fn read(self, stdout: &str) -> Result<Vec<f64>> {
        let numbers = |line: &str| line.split(',').map(|word| word.trim().parse().ok()).collect::<Option<Vec<f64>>>();
        let line = stdout.lines().filter_map(numbers).rfind(|columns| columns.len() >= 8);
        match (self, line.context("no line of results")?.as_slice()) {
            (Self::Latency, &[_, median, ..]) => Ok(vec![median]),
            (Self::Bandwidth, &[_, _, _, _, _, overall, ..]) => Ok(vec![overall * f64::from(1 << 20) * 8.0 / 1e9]),
            (Self::Rate, &[_, _, _, _, _, _, _, overall, ..]) => Ok(vec![overall / 1e6]),
            (_, columns) => bail!("unexpected columns: {columns:?}"),
        }
    }
}

fn fi_pingpong(host: &Host, size: u32, iters: u32) -> Result<Vec<f64>> {
    let (size, iters, port) = (size.to_string(), iters.to_string(), host.next_port().to_string());
    let common = ["-p", "tcp", "-e", "rdm", "-S", &size, "-I", &iters];
    let ends = Ends {
        server: [&common[..], &["-B", &port]].concat(),
        client: [&common[..], &["-P", &port]].concat(),
        apart: false,
    };
    let client = ends.run(host, "fi_pingpong", port.parse()?, &[])?;
    read_fi_pingpong(&client.stdout).with_context(|| format!("reading {client}"))
}

/// `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`, where a transfer is half an exchange.
fn read_fi_pingpong(stdout: &str) -> Result<Vec<f64>> {
    let line = stdout.lines().skip_while(|line| !line.starts_with("bytes")).nth(1).context("no table of results")?;
    Ok(vec![line.split_whitespace().nth(6).context("no usec/xfer")?.parse()?])
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
    fn ucx_and_libfabric_are_read() -> Result<()> {
        let ucx = "iterations,50.0_percentile_lat,avg_lat\n 5000,3.591,66.846,716.839,0.11,1000.0,14960,1395\n";
        assert_eq!(UcxReport::Latency.read(ucx)?, [3.591]);
        assert_eq!(UcxReport::Bandwidth.read(ucx)?, [8.388_608]);
        assert_eq!(UcxReport::Rate.read(ucx)?, [0.001_395]);
        assert!(UcxReport::Latency.read("nothing\n").is_err());
        let fi = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                  8       2k      =2k      31k         0.62s      0.05     154.51       0.01\n";
        assert_eq!(read_fi_pingpong(fi)?, [154.51]);
        assert!(read_fi_pingpong("bytes\n").is_err());
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

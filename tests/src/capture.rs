//! tshark: packets as an independent dissector sees them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::process::{Process, TIMEOUT};
use crate::procfs;
use crate::world::{Host, wait_until};

/// A capture of a host's RoCE v2 traffic on one interface, running.
#[derive(Debug)]
pub struct Capture<'a> {
    host: &'a Host,
    process: Process,
    file: PathBuf,
}

/// Rows of dissected fields, one a packet.
pub type Fields = Vec<Vec<String>>;

impl<'a> Capture<'a> {
    /// Starts to capture on `netdev` into `file` (pcapng). Turns UDP segmentation offload off there: with it, one captured
    /// frame holds many packets, and only the last of them shows its ICRC.
    pub fn start(host: &'a Host, netdev: &str, file: &Path) -> Result<Self> {
        host.run("ethtool", &["-K", netdev, "tx-udp-segmentation", "off"])?;
        let path = file.to_str().context("a path that is not UTF-8")?;
        let process = host.spawn("tshark", &["-q", "-i", netdev, "-f", "udp port 4791", "-w", path])?;
        let mut capture = Self { host, process, file: file.to_path_buf() };
        wait_until("tshark captures", || {
            ensure!(capture.process.is_running()?, "tshark ended: {}", capture.process.stderr_so_far());
            Ok(procfs::is_capturing(host)? && capture.file.exists())
        })?;
        Ok(capture)
    }

    /// Ends the capture and returns `fields` of every packet; a field that is not in a packet is empty, one that occurs
    /// more than once is joined with commas.
    pub fn finish(self, fields: &[&str]) -> Result<Fields> {
        let Self { host, process, file } = self;
        // tshark writes what it has buffered before it ends.
        process.signal(libc::SIGINT)?;
        process.finish(TIMEOUT)?.success()?;
        dissect(host, &file, fields)
    }
}

/// `fields` of every packet in `file`, by tshark.
fn dissect(host: &Host, file: &Path, fields: &[&str]) -> Result<Fields> {
    let path = file.to_str().context("a path that is not UTF-8")?;
    let mut args = vec!["-r", path, "-T", "fields"];
    args.extend(fields.iter().flat_map(|field| ["-e", field]));
    let output = host.run("tshark", &args)?;
    Ok(output.stdout.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

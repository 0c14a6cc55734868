//! tshark: packets as an independent dissector sees them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::process::{Process, TIMEOUT};
use crate::procfs;
use crate::world::{Host, wait_until};

const END_MARK: &[u8] = b"end of capture";

/// Sends datagrams out of an interface, which mark the end of a capture, until it is killed: a full buffer may have no room for the
/// first. Not to 4791: they are no RoCE packets.
const SEND_MARKS: &str = "import socket, sys, time\n\
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\n\
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, sys.argv[1].encode())\n\
    while True:\n\
    \x20 s.sendto(b'end of capture', ('255.255.255.255', 4790))\n\
    \x20 time.sleep(0.1)";

/// A capture of a host's RoCE v2 traffic on one interface, running.
#[derive(Debug)]
pub struct Capture<'a> {
    host: &'a Host,
    netdev: String,
    process: Process,
    file: PathBuf,
}

/// Rows of dissected fields, one a packet.
pub type Fields = Vec<Vec<String>>;

/// Makes a host send single packets on `netdev`, which for a pair of veth are what the other end captures.
pub fn without_segmentation_offload(host: &Host, netdev: &str) -> Result<()> {
    host.run("ethtool", &["-K", netdev, "tx-udp-segmentation", "off"]).map(drop)
}

impl<'a> Capture<'a> {
    /// Starts to capture on `netdev` into `file` (pcapng). Turns UDP segmentation offload off there: with it, one captured
    /// frame holds many packets, and only the last of them shows its ICRC. Programs started from now on send by UDP within
    /// the host as well. Of what another host sends, that host decides:
    /// see [`without_segmentation_offload`].
    pub fn start(host: &'a Host, netdev: &str, file: &Path) -> Result<Self> {
        without_segmentation_offload(host, netdev)?;
        Self::start_with_offload(host, netdev, file)
    }

    /// Starts to capture as tcpdump does: with segmentation offload, a frame may hold many packets.
    pub fn start_with_offload(host: &'a Host, netdev: &str, file: &Path) -> Result<Self> {
        host.set_env("URXE_LOOPBACK", "udp");
        let path = file.to_str().context("a path that is not UTF-8")?;
        let process =
            host.spawn("tshark", &["-q", "-i", netdev, "-f", "udp port 4790 or udp port 4791", "-w", path])?;
        let mut capture = Self { host, netdev: netdev.to_owned(), process, file: file.to_path_buf() };
        wait_until("tshark captures", || {
            ensure!(capture.process.is_running()?, "tshark ended: {}", capture.process.stderr_so_far());
            Ok(procfs::is_capturing(host)? && capture.file.exists())
        })?;
        Ok(capture)
    }

    /// Ends the capture and returns `fields` of every packet; a field that is not in a packet is empty, one that occurs
    /// more than once is joined with commas.
    pub fn finish(self, fields: &[&str]) -> Result<Fields> {
        let Self { host, netdev, process, file } = self;
        // tshark forgets what it has not read when it is told to end, and packets are written in order.
        let mut marks = host.spawn("python3", &["-c", SEND_MARKS, &netdev])?;
        wait_until("tshark has written every packet", || {
            ensure!(marks.is_running()?, "{}", marks.stderr_so_far());
            let written = std::fs::read(&file)?;
            Ok(written.windows(END_MARK.len()).any(|bytes| bytes == END_MARK))
        })?;
        drop(marks);
        process.signal(libc::SIGINT)?;
        process.finish(TIMEOUT)?.success()?;
        dissect(host, &file, fields)
    }
}

/// `fields` of every packet in `file`, by tshark.
pub fn dissect(host: &Host, file: &Path, fields: &[&str]) -> Result<Fields> {
    let path = file.to_str().context("a path that is not UTF-8")?;
    let mut args = vec!["-r", path, "-Y", "udp.dstport == 4791", "-T", "fields"];
    args.extend(fields.iter().flat_map(|field| ["-e", field]));
    let output = host.run("tshark", &args)?;
    Ok(output.stdout.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

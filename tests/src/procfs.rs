//! Kernel's view of a host: listening ports, abstract names, sockets on 4791.

use std::fmt;
use std::fs;
use std::mem::replace;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::world::{Host, wait_until};

/// UDP port of RoCE v2, as /proc/net/udp prints it.
const ROCE_V2_PORT_HEX: &str = "12B7";

/// Flag `__SO_ACCEPTCON` in /proc/net/unix (linux/net.h): the socket listens. Accepted sockets carry the same name.
const SO_ACCEPTCON: u32 = 0x1_0000;

/// State `TCP_LISTEN` in /proc/net/tcp.
const TCP_LISTEN: &str = "0A";

/// Resources that urxe holds on a host. None may be left once the programs have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftovers {
    /// Abstract unix names that start with `urxe/`.
    pub names: Vec<String>,
    /// Local addresses of UDP sockets on 4791, in the kernel's hexadecimal.
    pub sockets: Vec<String>,
    /// Files in `/dev/shm` and `TMPDIR`.
    pub files: Vec<PathBuf>,
}

impl Leftovers {
    /// Lists the present resources.
    pub fn on(host: &Host) -> Result<Self> {
        let mut sockets = local_addresses(host, "udp")?;
        sockets.extend(local_addresses(host, "udp6")?);
        sockets.retain(|(address, _)| address.ends_with(&format!(":{ROCE_V2_PORT_HEX}")));
        let mut files = Vec::new();
        for dir in [host.root().join("dev/shm"), host.tmp_dir().to_path_buf()] {
            for entry in fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
                files.push(entry?.path());
            }
        }
        Ok(Self {
            names: abstract_names(host)?.into_iter().map(|socket| socket.name).collect(),
            sockets: sockets.into_iter().map(|(address, _)| address).collect(),
            files,
        })
    }

    /// Whether urxe holds nothing.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.sockets.is_empty() && self.files.is_empty()
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "abstract names {:?}, sockets on 4791 {:?}, files {:?}", self.names, self.sockets, self.files)
    }
}

/// The port owner of address `ip` on a host: the process that listens on the name `urxe/…/owner/<ip>`.
pub fn port_owner(host: &Host, ip: &str) -> Result<u32> {
    let suffix = format!("/owner/{ip}");
    let names = abstract_names(host)?;
    let owner = names.iter().find(|socket| socket.listens && socket.name.ends_with(&suffix));
    let owner = owner.with_context(|| format!("nobody owns the port of {ip}: {names:?}"))?;
    holder_of(owner.inode)?.with_context(|| format!("no process holds {}", owner.name))
}

/// Whether a program of the host listens on TCP `port`.
pub(crate) fn is_listening(host: &Host, port: u16) -> Result<bool> {
    let mut sockets = local_addresses(host, "tcp")?;
    sockets.extend(local_addresses(host, "tcp6")?);
    let port = format!(":{port:04X}");
    Ok(sockets.iter().any(|(address, state)| address.ends_with(&port) && state == TCP_LISTEN))
}

/// Number of packets that the host has sent on an interface.
pub(crate) fn packets_sent(host: &Host, netdev: &str) -> Result<u64> {
    let table = host.net_file("dev")?;
    let row = table.lines().find_map(|line| line.trim_start().strip_prefix(netdev)?.strip_prefix(':'));
    // bytes packets errs drop fifo frame compressed multicast, received; then the same, sent
    let count = row.and_then(|row| row.split_whitespace().nth(9)).with_context(|| format!("no {netdev} in {table}"))?;
    Ok(count.parse()?)
}

/// Whether a program of the host captures packets.
pub(crate) fn is_capturing(host: &Host) -> Result<bool> {
    // sk RefCnt Type Proto Iface R Rmem User Inode: R is 1 when the socket is bound and receives.
    Ok(host.net_file("packet")?.lines().skip(1).any(|line| line.split_whitespace().nth(5) == Some("1")))
}

/// A socket with an abstract name of urxe.
#[derive(Debug)]
struct NamedSocket {
    name: String,
    inode: u64,
    listens: bool,
}

fn abstract_names(host: &Host) -> Result<Vec<NamedSocket>> {
    let row = |line: &str| {
        // Num RefCount Protocol Flags Type St Inode Path; an abstract name is shown with a leading @.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[_num, _refs, _protocol, flags, _type, _state, inode, path] = fields.as_slice() else { return None };
        let name = path.strip_prefix('@').filter(|name| name.starts_with("urxe/"))?;
        let flags = u32::from_str_radix(flags, 16).ok()?;
        Some(NamedSocket { name: name.to_owned(), inode: inode.parse().ok()?, listens: flags & SO_ACCEPTCON != 0 })
    };
    Ok(host.net_file("unix")?.lines().skip(1).filter_map(row).collect())
}

/// Local address and state of every socket in /proc/net/`table`.
fn local_addresses(host: &Host, table: &str) -> Result<Vec<(String, String)>> {
    // sl local_address rem_address st …
    let row = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        Some((fields.next()?.to_owned(), fields.nth(1)?.to_owned()))
    };
    Ok(host.net_file(table)?.lines().skip(1).filter_map(row).collect())
}

/// A process that has the socket `inode` open.
fn holder_of(inode: u64) -> Result<Option<u32>> {
    let wanted = PathBuf::from(format!("socket:[{inode}]"));
    for process in fs::read_dir("/proc")? {
        let process = process?;
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Processes of other users, and those that end meanwhile, cannot be read.
        let Ok(fds) = fs::read_dir(process.path().join("fd")) else { continue };
        if fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == wanted)) {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// Number of times that urxe's thread in this process wakes in a span of time in which nothing happens. What has happened just before
/// may concern it a little longer, and it may not have its turn at once: the span begins when it has slept for a while.
pub fn wakes_of_our_thread(span: Duration) -> Result<u64> {
    // An ACK timer that is not needed any more still goes off: after 1.07 s, by `verbs::Options`.
    const A_WHILE: Duration = Duration::from_millis(1500);
    let mut before = None;
    wait_until("urxe's thread sleeps", || {
        sleep(A_WHILE);
        let now = sleeps_of_our_thread()?;
        Ok(now.is_some() && replace(&mut before, now) == now)
    })?;
    sleep(span);
    let after = sleeps_of_our_thread()?;
    let (after, before) = after.zip(before).context("urxe's thread has ended")?;
    Ok(after - before)
}

/// How often it has gone to sleep so far: its voluntary context switches (proc_pid_status(5)). `None` before it runs for the
/// first time, and has a name.
fn sleeps_of_our_thread() -> Result<Option<u64>> {
    for entry in fs::read_dir("/proc/self/task")? {
        let task = entry?.path();
        // Threads that have ended meanwhile cannot be read.
        if fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "urxe\n") {
            let Ok(status) = fs::read_to_string(task.join("status")) else { continue };
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            return Ok(Some(line.context("no such line")?.trim().parse()?));
        }
    }
    Ok(None)
}

/// Bytes of memory that this process has for itself (proc_pid_statm(5): resident less shared).
pub fn memory_of_our_own() -> Result<usize> {
    const PAGE: usize = 4096;
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_whitespace().map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let &[_, resident, shared, ..] = pages.as_slice() else { anyhow::bail!("unexpected: {statm}") };
    Ok((resident - shared) * PAGE)
}

/// Bytes of memory that this process has, of what it shares with others its share (proc_pid_smaps_rollup(5): Pss).
pub fn memory_of_our_share() -> Result<usize> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).context("no such line")?;
    let kilobytes: usize = line.trim().trim_end_matches("kB").trim_end().parse()?;
    Ok(kilobytes << 10)
}

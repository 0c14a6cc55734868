//! Worlds and their hosts.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::artifacts;
use crate::process::{Finished, Process, TICK, TIMEOUT};
use crate::verbs::PATIENCE;

/// Variables that must not leak from the machine into a world, besides those of options.
const FOREIGN_VARIABLES: [&str; 11] = [
    "CI",
    "IBV_CONFIG_DIR",
    "IBV_DRIVERS",
    "IBV_FORK_SAFE",
    "IBV_SHOW_WARNINGS",
    "LD_PRELOAD",
    "NO_COLOR",
    "RDMAV_DRIVERS",
    "SYSFS_PATH",
    "URXE_CONFIG",
    urxe_options::RUN_VARIABLE,
];

/// A machine of one's own; see the [crate's documentation](crate). Everything ends when this is dropped.
#[derive(Debug)]
pub struct World {
    host: Host,
    dir: tempfile::TempDir,
}

/// A network of a [`World`], and the way to run programs there.
#[derive(Debug)]
pub struct Host {
    holder: Holder,
    tmp_dir: PathBuf,
    /// Variables for every program: `SYSFS_PATH`, later `URXE_NETDEV`.
    env: Mutex<Vec<(String, String)>>,
    /// IPv4 address that the other hosts reach this one at.
    address: Mutex<String>,
    next_port: AtomicU16,
}

/// The process that holds the namespaces, and descriptors of them.
#[derive(Debug)]
struct Holder {
    child: Child,
    namespaces: Vec<File>,
}

impl World {
    /// A machine with urxe installed by `urxe install`, and `lo` up.
    pub fn new() -> Result<Self> {
        let world = Self::bare()?;
        let installed = world.host.run(artifacts::urxe()?, &["install"])?;
        ensure!(installed.stderr.is_empty(), "urxe cannot work here: {}", installed.stderr);
        let env = world.host.run(artifacts::urxe()?, &["env"])?;
        for line in env.stdout.lines() {
            let export = line.strip_prefix("export ").and_then(|line| line.split_once('='));
            let (name, value) = export.with_context(|| format!("urxe env printed {line:?}"))?;
            world.host.set_env(name, value);
        }
        Ok(world)
    }

    /// Makes a world with another host on a cable of MTU 1500 ([`link`](Self::link)).
    pub fn linked() -> Result<(Self, Host)> {
        let world = Self::new()?;
        let other = world.add_host()?;
        world.link(world.host(), &other, 1500)?;
        Ok((world, other))
    }

    /// A machine without urxe: no `/dev/infiniband`, no driver file.
    pub fn bare() -> Result<Self> {
        artifacts::bin_dir()?;
        let dir = tempfile::Builder::new().prefix("world-").tempdir()?;
        let holder = Holder::start(Command::new(artifacts::sandbox()?).arg("machine"))
            .context("making a mount and a network namespace; without root, user namespaces must be allowed")?;
        let host = Host::new(holder, dir.path(), "a", &[])?;
        Ok(Self { host, dir })
    }

    /// The first host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// A folder for this world's files; not visible as anything special inside.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Another host: its own network with `lo`, the same installation and files.
    pub fn add_host(&self) -> Result<Host> {
        let mut command = self.host.command(artifacts::sandbox()?);
        command.arg("host");
        let holder = Holder::start(&mut command)?;
        let name = holder.child.id().to_string();
        Host::new(holder, self.dir.path(), &name, &self.host.env())
    }

    /// A machine beside this one, of the same user: `/dev`, folders of an installation and network of its own, urxe not
    /// installed. `name` is for its files.
    pub fn add_machine(&self, name: &str) -> Result<Host> {
        let mut command = self.host.command(artifacts::sandbox()?);
        command.arg("machine");
        Host::new(Holder::start(&mut command)?, self.dir.path(), name, &[])
    }

    /// Connects two hosts by a veth pair, `veth0` at both ends, with addresses 10.77.0.1 and fd77::1 (`a`), 10.77.0.2
    /// and fd77::2 (`b`). Puts urxe0 on it (`URXE_NETDEV`) for programs started from now on.
    pub fn link(&self, a: &Host, b: &Host, mtu: u32) -> Result<()> {
        cable(a, b, "veth0", mtu)?;
        Self::address(&[a, b])
    }

    /// Connects hosts by a switch, each as by [`link`](Self::link): the first has 10.77.0.1. The host that is returned is the switch.
    pub fn switch(&self, hosts: &[&Host]) -> Result<Host> {
        let switch = self.add_host()?;
        switch.run("ip", &["link", "add", "br0", "type", "bridge", "mcast_snooping", "0"])?.success()?;
        switch.run("ip", &["link", "set", "br0", "addrgenmode", "none", "up"])?.success()?;
        for (host, number) in hosts.iter().zip(1..) {
            let port = format!("port{number}");
            cable(host, &switch, &port, 1500)?;
            switch.run("ip", &["link", "set", &port, "master", "br0", "addrgenmode", "none", "up"])?.success()?;
        }
        Self::address(hosts)?;
        Ok(switch)
    }

    /// Makes a world with a third host on the way that lets one in a hundred RoCE packets be overtaken by up to `by` that come
    /// behind, or by none if that is 0; `seed` decides which. The process is that host's.
    pub fn link_through(&self, a: &Host, between: &Host, b: &Host, by: u32, seed: u64) -> Result<Process> {
        Self::link_by(a, between, b, &["overtake", &seed.to_string(), &by.to_string()])
    }

    /// Makes a world with a third host on the way that takes RoCE packets over several paths, each of which takes so many
    /// microseconds, by UDP source port. The process is that host's.
    pub fn link_by_paths(&self, a: &Host, between: &Host, b: &Host, micros: &[u64]) -> Result<Process> {
        let micros: Vec<String> = micros.iter().map(u64::to_string).collect();
        let delays: Vec<&str> = micros.iter().map(String::as_str).collect();
        Self::link_by(a, between, b, &[&["paths"], &delays[..]].concat())
    }

    fn link_by(a: &Host, between: &Host, b: &Host, reordering: &[&str]) -> Result<Process> {
        for (host, end) in [(a, "left"), (b, "right")] {
            cable(host, between, end, 1500)?;
            // Who passes frames on by itself must get them as they are on a cable.
            host.run("ethtool", &["-K", "veth0", "tx", "off", "tso", "off", "gso", "off"])?;
            between.run("ip", &["link", "set", end, "addrgenmode", "none", "up"])?;
        }
        let args = [&["forward", "left", "right"], reordering].concat();
        let mut forwarder = between.spawn(artifacts::sandbox()?, &args)?;
        Self::address(&[a, b])?;
        ensure!(forwarder.is_running()?, "the forwarder ended: {}", forwarder.stderr_so_far());
        Ok(forwarder)
    }

    fn address(hosts: &[&Host]) -> Result<()> {
        for (host, last) in hosts.iter().zip(1..) {
            host.run("ip", &["link", "set", "veth0", "up"])?;
            host.run("ip", &["address", "add", &format!("10.77.0.{last}/24"), "dev", "veth0"])?;
            host.run("ip", &["address", "add", &format!("fd77::{last}/64"), "dev", "veth0", "nodad"])?;
            host.set_env("URXE_NETDEV", "veth0");
            *host.address.lock().unwrap_or_else(PoisonError::into_inner) = format!("10.77.0.{last}");
        }
        // The link-local addresses come when the kernel has noticed that the link is up, and duplicate address detection holds them
        // back for another second or two.
        for host in hosts {
            host.wait_for_links(&["veth0"])?;
            wait_until("veth0 has its addresses", || {
                Ok(!host.run("ip", &["-6", "address", "show", "dev", "veth0", "tentative"])?.stdout.contains("inet6"))
            })?;
        }
        Ok(())
    }
}

/// A veth pair: `veth0` here, `name` there.
fn cable(here: &Host, there: &Host, name: &str, mtu: u32) -> Result<()> {
    let (peer, mtu) = (there.pid().to_string(), mtu.to_string());
    let ends = ["link", "add", "veth0", "mtu", &mtu, "type", "veth", "peer", "name", name, "mtu", &mtu];
    here.run("ip", &[&ends[..], &["netns", &peer]].concat()).map(drop)
}

impl Host {
    fn new(holder: Holder, world_dir: &Path, name: &str, env: &[(String, String)]) -> Result<Self> {
        let tmp_dir = world_dir.join(format!("tmp-{name}"));
        fs::create_dir(&tmp_dir)?;
        Ok(Self {
            holder,
            tmp_dir,
            env: Mutex::new(env.to_vec()),
            address: Mutex::new("127.0.0.1".to_owned()),
            next_port: AtomicU16::new(18515),
        })
    }

    /// Waits until the kernel says that these interfaces are up, which is up to a second after they were set up.
    pub fn wait_for_links<T: AsRef<str>>(&self, names: &[T]) -> Result<()> {
        wait_until("the links are up", || {
            let links = self.run("ip", &["-o", "link", "show", "up"])?.stdout;
            let is_up = |name: &str| {
                let of_it = |line: &str| line.split([':', '@']).nth(1).is_some_and(|word| word.trim() == name);
                links.lines().any(|line| of_it(line) && line.contains("state UP"))
            };
            Ok(names.iter().all(|name| is_up(name.as_ref())))
        })
    }

    /// A process whose namespaces are this host's, in the words of `ip link … netns PID`.
    pub fn pid(&self) -> u32 {
        self.holder.child.id()
    }

    /// Sets a variable for programs started here from now on.
    pub fn set_env(&self, name: &str, value: &str) {
        let mut env = self.env.lock().unwrap_or_else(PoisonError::into_inner);
        env.retain(|(known, _)| known != name);
        env.push((name.to_owned(), value.to_owned()));
    }

    /// Has programs started here from now on reach the memory of each other without packets: the way for that is shared memory,
    /// whatever way the whole suite is run over.
    pub fn go_direct(&self) {
        self.set_env("URXE_DIRECT", "1");
        self.set_env("URXE_LOOPBACK", "shm");
    }

    fn env(&self) -> Vec<(String, String)> {
        self.env.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// IPv4 address for the TCP side of programs: 127.0.0.1, or veth0's after [`World::link`].
    pub fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A TCP port nobody here has used yet.
    pub fn next_port(&self) -> u16 {
        self.next_port.fetch_add(1, Ordering::Relaxed)
    }

    /// `TMPDIR` of programs here.
    pub fn tmp_dir(&self) -> &Path {
        &self.tmp_dir
    }

    /// The root folder as programs here see it.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.holder.child.id()))
    }

    /// A command that will run here. Its working directory is `/`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for name in FOREIGN_VARIABLES.into_iter().chain(urxe_options::ALL.iter().map(|option| option.variable)) {
            command.env_remove(name);
        }
        // The whole suite may be run over the one way or the other.
        if let Some(way) = std::env::var_os("URXE_TEST_LOOPBACK") {
            command.env("URXE_LOOPBACK", way);
        }
        command.env("TMPDIR", &self.tmp_dir).envs(self.env());
        // A library that was built with a sanitizer needs its runtime before everything else.
        if let Some(runtime) = std::env::var_os("URXE_SANITIZER_RUNTIME") {
            command.env("LD_PRELOAD", runtime);
        }
        let namespaces: Vec<_> = self.holder.namespaces.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: `setns` is a plain system call and may run between fork and exec. The descriptors are inherited by
        // the fork, and stay open until the command has been started: commands do not outlive the host.
        unsafe {
            command.pre_exec(move || {
                for &namespace in &namespaces {
                    if libc::setns(namespace, 0) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        command
    }

    /// Starts a program here.
    pub fn spawn(&self, program: impl AsRef<OsStr>, args: &[&str]) -> Result<Process> {
        let mut command = self.command(program);
        command.args(args);
        self.start(command)
    }

    /// Starts a command that [`Host::command`] made.
    pub fn start(&self, command: Command) -> Result<Process> {
        Process::spawn(command)
    }

    /// Runs a program here to its successful end; an error holds what it printed.
    pub fn run(&self, program: impl AsRef<OsStr>, args: &[&str]) -> Result<Finished> {
        self.try_run(program, args)?.success()
    }

    /// Runs a program here to its end, whatever that is.
    pub fn try_run(&self, program: impl AsRef<OsStr>, args: &[&str]) -> Result<Finished> {
        self.spawn(program, args)?.finish(TIMEOUT)
    }

    /// Whether a program here listens on TCP `port`.
    pub fn is_listening(&self, port: u16) -> Result<bool> {
        crate::procfs::is_listening(self, port)
    }

    /// Number of packets that this host has sent on an interface.
    pub fn packets_sent(&self, netdev: &str) -> Result<u64> {
        crate::procfs::packets_sent(self, netdev)
    }

    /// /proc/net/`name` of this host.
    pub(crate) fn net_file(&self, name: &str) -> Result<String> {
        let path = format!("/proc/{}/net/{name}", self.holder.child.id());
        fs::read_to_string(&path).with_context(|| format!("reading {path}"))
    }
}

impl Holder {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting urxe-sandbox")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no stdout pipe")?).read_line(&mut line)?;
        if line != "ready\n" {
            let output = child.wait_with_output()?;
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        // SAFETY: `geteuid` has no preconditions.
        let root = unsafe { libc::geteuid() } == 0;
        let names: &[&str] = if root { &["mnt", "net"] } else { &["user", "mnt", "net"] };
        let open = |name: &&str| File::open(format!("/proc/{}/ns/{name}", child.id()));
        let namespaces = names.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { child, namespaces })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Waits for `condition`, looking at it every few milliseconds.
pub fn wait_until(what: &str, condition: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_within(PATIENCE, what, condition)
}

/// Waits for `condition` as [`wait_until`] does, for something that others take this long for at most.
pub fn wait_within(patience: Duration, what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !condition()? {
        ensure!(Instant::now() < deadline, "waited in vain: {what}");
        sleep(TICK);
    }
    Ok(())
}

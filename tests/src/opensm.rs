//! Debian's opensm on hosts with ports of InfiniBand.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::infiniband::{ask_again, compile_mad_program};
use crate::launcher::Launcher;
use crate::process::{Process, TIMEOUT};
use crate::world::{Host, wait_until};

/// Arguments of the command for a program with such a port.
pub const INFINIBAND: [&str; 4] = ["run", "--link-layer", "infiniband", "--"];

/// Line of sminfo about the first host's opensm;
pub const FIRST: &str = "sm lid 1 sm guid 0x2005efe0a4d0001";
/// about the second host's;
pub const SECOND: &str = "sm lid 2 sm guid 0x2005efe0a4d0002";
/// and about the built-in manager.
pub const BUILT_IN: &str = "sm lid 48896 sm guid 0x27572fffe737700";

/// A path as text.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}

/// Two hosts on a cable, 10.77.0.1 and 10.77.0.2: LIDs 1 and 2.
pub struct Cable<'a> {
    /// The command.
    pub urxe: PathBuf,
    /// Folder of the world.
    pub dir: PathBuf,
    /// Both hosts.
    pub hosts: [&'a Host; 2],
    /// Program that subscribes to reports.
    pub reports: String,
    /// Program that joins groups.
    pub joins: String,
}

impl Cable<'_> {
    /// Starts a program below `urxe run` on a host.
    pub fn spawn(&self, host: usize, words: &[&str]) -> Result<Process> {
        self.hosts[host].spawn(&self.urxe, &[&INFINIBAND[..], words].concat())
    }

    /// Output of a program below `urxe run` on a host.
    pub fn say(&self, host: usize, words: &[&str]) -> Result<String> {
        Ok(self.hosts[host].try_run(&self.urxe, &[&INFINIBAND[..], words].concat())?.stdout)
    }

    /// Output of a program of infiniband-diags below `urxe run` on a host, when it has found an answer.
    pub fn ask(&self, host: usize, words: &[&str]) -> Result<String> {
        let words = [&INFINIBAND[..], words].concat();
        Ok(ask_again(|| self.hosts[host].try_run(&self.urxe, &words))?.success()?.stdout)
    }

    /// Waits until a port is active, as a host sees it by LID.
    pub fn wait_for_port(&self, host: usize, lid: u16) -> Result<()> {
        let words = ["smpquery", "portinfo", &lid.to_string(), "1"];
        wait_until("an active port", || Ok(self.say(host, &words)?.contains("Active")))
    }

    /// The log of opensm on a host.
    pub fn log(&self, host: usize) -> PathBuf {
        self.dir.join(format!("opensm{host}.log"))
    }

    /// Starts opensm with options; its files are in the world's folder.
    pub fn opensm(&self, host: usize, options: &[&str]) -> Result<Process> {
        let folder = self.dir.join(format!("cache{host}"));
        std::fs::create_dir_all(&folder)?;
        let variables = [format!("OSM_CACHE_DIR={}/", text(&folder)?), format!("OSM_TMP_DIR={}/", text(&folder)?)];
        let log = self.log(host);
        // Each line of the log is written at once: what is waited for is in there. A host has two seconds for an answer, three times:
        // the default, a tenth of that, is the error of a busy machine.
        let words =
            ["env", &variables[0], &variables[1], "opensm", "-D", "0x3", "-d2", "-t", "2000", "-f", text(&log)?];
        self.spawn(host, &[&words[..], options].concat())
    }

    /// Waits until the log of opensm has this.
    pub fn wait_for(&self, host: usize, wanted: &str) -> Result<()> {
        wait_until(wanted, || Ok(std::fs::read_to_string(self.log(host)).unwrap_or_default().contains(wanted)))
    }

    /// Fails if opensm has had errors.
    pub fn check_log(&self, host: usize) -> Result<()> {
        let log = std::fs::read_to_string(self.log(host))?;
        let errors: Vec<_> = log.lines().filter(|line| line.contains("ERR ")).collect();
        ensure!(errors.is_empty(), "{errors:#?}");
        Ok(())
    }

    /// Waits until a host's subnet manager is the one with this LID and GUID.
    pub fn wait_for_manager(&self, host: usize, manager: &str) -> Result<()> {
        let mut said = String::new();
        wait_until(manager, || {
            said = self.say(host, &["sminfo"])?;
            Ok(said.contains(manager) && said.contains("SMINFO_MASTER"))
        })
        .with_context(|| format!("{said}\n{}", std::fs::read_to_string(self.log(0)).unwrap_or_default()))
    }
}

/// Runs a test with two hosts on a cable.
pub fn with_cable(test: impl FnOnce(&Cable<'_>) -> Result<()>) -> Result<()> {
    with_cable_of(1500, test)
}

/// Runs a test with two hosts on a cable of this MTU.
pub fn with_cable_of(mtu: u32, test: impl FnOnce(&Cable<'_>) -> Result<()>) -> Result<()> {
    let launcher = Launcher::new()?;
    let (world, other) = (launcher.world(), launcher.world().add_host()?);
    world.link(world.host(), &other, mtu)?;
    let reports = compile_mad_program(world, "sa_reports", include_str!("../programs/sa_reports.c"))?;
    let joins = compile_mad_program(world, "sa_multicast", include_str!("../programs/sa_multicast.c"))?;
    test(&Cable { urxe: launcher.urxe(), dir: world.dir().to_owned(), hosts: [world.host(), &other], reports, joins })
}

/// Kills a process, and waits for its end.
pub fn kill(process: Process) -> Result<()> {
    process.signal(libc::SIGKILL)?;
    process.finish(TIMEOUT)?;
    Ok(())
}

//! Hosts with a port of InfiniBand: their programs run under `urxe run --link-layer infiniband`, with nothing installed.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::artifacts;
use crate::pingpong::wait_for_listener;
use crate::process::{Finished, Process, TIMEOUT};
use crate::world::{Host, World};

/// Commands of infiniband-diags about a host, and what each says of it. `{lid}` and `{guid}` are the host's, `{port}` is that of its
/// switch, which has the LID 48896. The table of programs in `docs/internals/infiniband.md` names them.
pub const DIAGNOSTICS: &[(&str, &[&str])] = &[
    ("ibstat", &["State: Active", "Physical state: LinkUp", "SM lid: 48896\n", "Link layer: InfiniBand"]),
    ("ibstatus", &["4: ACTIVE", "5: LinkUp", "0xbf00", "InfiniBand"]),
    ("ibping -c 3 {lid}", &["(Lid {lid}): time", "3 packets transmitted, 3 received, 0% packet loss"]),
    ("ibping -c 3 -G {guid}", &["(Lid {lid}): time", "3 packets transmitted, 3 received, 0% packet loss"]),
    ("ibsysstat {lid}", &["sysstat ping succeeded"]),
    ("ibaddr {lid}", &["LID start 0x{lid} end 0x{lid}"]),
    ("ibnetdiscover", &["Switch\t241", "H-{digits}", "lid {lid} lmc 0"]),
    ("iblinkinfo -l", &["{guid}", "Active/  LinkUp"]),
    ("iblinkinfo -S 0x027572fffe737700", &["urxe virtual switch, leaf 0", "Active/  LinkUp)==>       {lid}    1["]),
    ("iblinkinfo -S {guid}", &["{guid}", "Active/  LinkUp"]),
    ("ibhosts", &["{guid} ports 1"]),
    ("ibswitches", &["ports 241 \"urxe virtual switch, leaf 0\"", "lid 48896 lmc 0"]),
    ("ibnodes", &["{guid} ports 1", "ports 241 \"urxe virtual switch, leaf 0\""]),
    ("sminfo", &["sm lid 48896 sm guid 0x27572fffe737700", "state 3 SMINFO_MASTER"]),
    ("smpquery nodeinfo {lid}", &["Channel Adapter", "{guid}"]),
    ("smpquery -D nodeinfo 0,1,{port}", &["Channel Adapter", "{guid}"]),
    ("smpquery -D nodeinfo 0,1", &["Switch", "NumPorts:........................241"]),
    ("smpquery -c nodeinfo 48896 0,{port}", &["Channel Adapter", "{guid}"]),
    ("smpquery nodedesc {lid}", &["Node Description:"]),
    ("smpquery -D nodedesc 0,1", &["urxe virtual switch, leaf 0"]),
    (
        "smpquery portinfo {lid} 1",
        &[
            "LinkState:.......................Active",
            "SMLid:...........................48896",
            "LinkWidthActive:.................4X",
            "LinkSpeedActive:.................10.0 Gbps",
        ],
    ),
    ("smpquery -D portinfo 0,1,{port} 1", &["LinkState:.......................Active"]),
    (
        "smpquery portinfo 48896 {port}",
        &["LinkState:.......................Active", "LinkWidthActive:.................4X"],
    ),
    ("smpquery switchinfo 48896", &["LinearFdbCap:....................49152"]),
    ("smpquery -D switchinfo 0,1", &["LinearFdbCap:....................49152"]),
    ("smpquery pkeys {lid}", &["0: 0xffff", "32 pkeys capacity"]),
    ("smpquery -D pkeys 0,1,{port}", &["0: 0xffff"]),
    ("smpquery guidinfo {lid}", &["{guid}"]),
    ("smpquery -D guidinfo 0,1,{port}", &["{guid}"]),
    ("smpquery sl2vl {lid}", &["SL2VL table: Lid {lid}", "| 0| 0| 0|"]),
    ("smpquery -D sl2vl 0,1,{port}", &["SL2VL table", "| 0| 0| 0|"]),
    ("smpquery vlarb {lid}", &["VLArbitration tables"]),
    ("smpquery -D vlarb 0,1,{port}", &["VLArbitration tables"]),
    ("ibroute 48896", &["0x000{lid} 00{port}", "0xbf00 000"]),
    ("ibroute -M 48896", &["Multicast mlids"]),
    ("ibtracert 48896 {lid}", &["[{port}] -> ca port {{guid}}"]),
    ("perfquery {lid} 1", &["PortXmitPkts:"]),
    ("perfquery -x {lid} 1", &["PortXmitPkts:"]),
    ("perfquery -R {lid} 1", &[]),
    ("perfquery 48896 {port}", &["PortXmitPkts:....................0\n"]),
    ("ibqueryerrors", &["0 bad nodes found"]),
    ("saquery NR", &["urxe virtual switch, leaf 0", "{guid}"]),
    ("saquery PIR", &["LinkState:.......................Active", "LinkWidthActive:.................4X"]),
    ("saquery PR", &["dlid....................{lid}"]),
    ("saquery LR", &["LinkRecord dump"]),
    ("saquery LFTR", &["LFT Record dump"]),
    ("saquery MFTR", &[]),
    ("saquery SWIR", &["SwitchInfoRecord"]),
    ("saquery SL2VL", &["SL2VLTableRecord"]),
    ("saquery VLAR", &["VLArbTableRecord"]),
    ("saquery IIR", &[]),
    ("saquery GIR", &["{guid}"]),
    ("saquery --smkey 1 PKTR", &["0xffff"]),
    ("saquery SMIR", &["SMState...............3"]),
    ("saquery CPI", &["Capability mask..........0x0200"]),
    ("saquery MCMR", &[]),
    ("saquery SR", &[]),
    ("saquery -g", &[]),
    ("saquery -m", &[]),
    ("saquery -p --src-to-dst {own}:{lid}", &["dlid....................{lid}", "slid....................{own}"]),
];

/// Commands of infiniband-diags that the subnet refuses, and what they say.
pub const REFUSED_DIAGNOSTICS: &[(&str, &str)] = &[("ibccquery CongestionInfo {lid}", "CongestionInfo")];

/// Options that have saquery wait longer for its answer. By itself it waits for a second and asks once: too little beside others who
/// want the processors.
pub(crate) fn patience<'a>(program: &[&str]) -> &'a [&'a str] {
    if program == ["saquery"] { &["-t", "20000"] } else { &[] }
}

/// Times that a program of infiniband-diags is run, if it finds no answer.
const TRIES: usize = 8;

/// Runs a program of infiniband-diags, and again if it fails or a ping is lost. Most of them wait for a second for each answer, whatever
/// `-t` says, and others may have the processors as long.
pub fn ask_again(mut run: impl FnMut() -> Result<Finished>) -> Result<Finished> {
    let is_answered = |said: &Finished| {
        let has_lost = said.stdout.contains("packet loss") && !said.stdout.contains(" 0% packet loss");
        said.status.success() && !has_lost
    };
    let mut said = run()?;
    for _ in 1..TRIES {
        if is_answered(&said) {
            break;
        }
        said = run()?;
    }
    Ok(said)
}

/// A subnet of one host or two.
#[derive(Debug)]
pub struct Subnet {
    world: World,
    other: Option<Host>,
}

/// Compiles a C program against libibmad and libibumad; returns its path, in a world's folder.
pub fn compile_mad_program(world: &World, name: &str, source: &str) -> Result<String> {
    let file = world.dir().join(name).with_extension("c");
    std::fs::write(&file, source)?;
    let program = file.with_extension("");
    let (file, program) = (file.display().to_string(), program.display().to_string());
    let words = ["-O1", "-Wall", "-Werror", "-o", &program, &file, "-libmad", "-libumad", "-libverbs"];
    world.host().run("gcc", &words)?.success()?;
    Ok(program)
}

impl Subnet {
    /// A host with its port on `lo`.
    pub fn on_lo() -> Result<Self> {
        Ok(Self { world: World::bare()?, other: None })
    }

    /// Two hosts, 10.77.0.1 and 10.77.0.2, on a cable.
    pub fn linked() -> Result<Self> {
        Self::linked_at(1500)
    }

    /// Two hosts on a cable of this MTU.
    pub fn linked_at(mtu: u32) -> Result<Self> {
        let world = World::bare()?;
        let other = world.add_host()?;
        world.link(world.host(), &other, mtu)?;
        Ok(Self { world, other: Some(other) })
    }

    /// Both kinds.
    pub fn each() -> Result<[Self; 2]> {
        Ok([Self::on_lo()?, Self::linked()?])
    }

    /// The world.
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// First host, where servers run.
    pub fn server(&self) -> &Host {
        self.world.host()
    }

    /// Host of clients: the second, if there is one.
    pub fn client(&self) -> &Host {
        self.other.as_ref().unwrap_or_else(|| self.world.host())
    }

    /// IPv4 address of the first host.
    pub fn address(&self) -> String {
        if self.other.is_some() { self.server().address() } else { "127.0.0.1".to_owned() }
    }

    /// A command of one of the hosts.
    pub fn command(&self, host: &Host, words: &[&str]) -> Result<Command> {
        let mut command = host.command(artifacts::urxe()?);
        let (program, args) = words.split_at(1);
        command.args(["run", "--link-layer", "infiniband", "--"]).args(program).args(patience(program)).args(args);
        Ok(command)
    }

    /// Starts a program on a host.
    pub fn spawn(&self, host: &Host, words: &[&str]) -> Result<Process> {
        host.start(self.command(host, words)?)
    }

    /// Runs a program on a host to its end.
    pub fn try_run(&self, host: &Host, words: &[&str]) -> Result<Finished> {
        self.spawn(host, words)?.finish(TIMEOUT)
    }

    /// Runs a program on a host to its successful end.
    pub fn run(&self, host: &Host, words: &[&str]) -> Result<Finished> {
        self.try_run(host, words)?.success()
    }

    /// Runs a program whose two ends meet at a TCP port, which `port_option` names, to the success of both. Returns what the
    /// client has printed.
    pub fn exchange(&self, port_option: &str, words: &[&str]) -> Result<Finished> {
        let (server, client) = self.try_exchange(port_option, words)?;
        ensure!(client.status.success() && server.status.success(), "{client}\n{server}");
        Ok(client)
    }

    /// Runs a program whose two ends meet at a TCP port, which `port_option` names: server and client.
    pub fn try_exchange(&self, port_option: &str, words: &[&str]) -> Result<(Finished, Finished)> {
        let (host, port) = (self.server(), self.server().next_port());
        let port_text = port.to_string();
        let words = [words, &[port_option, &port_text]].concat();
        let server = wait_for_listener(host, self.spawn(host, &words)?, port)?;
        let client = self.try_run(self.client(), &[&words[..], &[&self.address()]].concat())?;
        Ok((server.finish(TIMEOUT)?, client))
    }
}

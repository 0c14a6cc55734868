//! Hosts with a port of InfiniBand: their programs run under `urxe run --link-layer infiniband`, with nothing installed.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::artifacts;
use crate::pingpong::wait_for_listener;
use crate::process::{Finished, Process, TIMEOUT};
use crate::world::{Host, World};

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
        command.args(["run", "--link-layer", "infiniband", "--"]).args(words);
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
        let (host, port) = (self.server(), self.server().next_port());
        let port_text = port.to_string();
        let words = [words, &[port_option, &port_text]].concat();
        let server = wait_for_listener(host, self.spawn(host, &words)?, port)?;
        let client = self.try_run(self.client(), &[&words[..], &[&self.address()]].concat())?;
        let server = server.finish(TIMEOUT)?;
        ensure!(client.status.success() && server.status.success(), "{client}\n{server}");
        Ok(client)
    }
}

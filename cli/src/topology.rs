//! Topology files: where the devices' PCI functions hang.
//!
//! The format is that of NCCL (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`): `<system>`, `<cpu numaid affinity>`, and nested
//! `<pci busid class link_speed link_width>`. A `<pci>` in another is behind a switch, which NCCL writes as one element; a
//! machine has an upstream port, which the element stands for, and a downstream port for each bus below. [`buses`] adds
//! those and the root ports, so that NCCL, which leaves them out again, finds in sysfs what the file says.

mod buses;
mod xml;

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

pub(crate) use buses::{FIRST_DOMAIN, Function};

/// The longest file: that of a machine with a hundred GPUs is a tenth of it.
const LONGEST: u64 = 1 << 20;

/// The most functions of a file.
const MOST_FUNCTIONS: usize = 1024;

/// Address of a PCI function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) domain: u16,
    pub(crate) bus: u8,
    pub(crate) device: u8,
    pub(crate) function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Speed and lanes of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// Number of the speed in the link registers: 4 is 16 GT/s.
    pub(crate) speed: u8,
    /// Lanes.
    pub(crate) width: u8,
}

/// Speeds by their numbers in the link registers, from 1 on, as the kernel writes them (`pci_speed_string`).
const SPEEDS: [&str; 6] =
    ["2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"];

impl Link {
    /// 16 lanes at 16 GT/s.
    pub(crate) const DEFAULT: Self = Self { speed: 4, width: 16 };

    /// The speed as sysfs has it.
    pub(crate) fn speed_text(self) -> &'static str {
        SPEEDS.get(usize::from(self.speed).saturating_sub(1)).copied().unwrap_or("Unknown")
    }
}

/// Vendor and device, of the function and of its subsystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) subsystem_vendor: u16,
    pub(crate) subsystem_device: u16,
}

/// Locality of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Locality {
    /// -1 if the machine does not say.
    pub(crate) numa_node: i32,
    /// Processors as a mask and as a list; `None` for those of the node.
    pub(crate) cpus: Option<(String, String)>,
}

/// `<cpu>`.
#[derive(Debug)]
struct Cpu {
    line: u32,
    locality: Locality,
    below: Vec<Pci>,
}

/// `<pci>`.
#[derive(Debug)]
struct Pci {
    line: u32,
    address: Address,
    class: u32,
    ids: Option<Ids>,
    link: Link,
    /// Whether the node has a `<nic>`.
    has_nic: bool,
    nets: Vec<Net>,
    below: Vec<Self>,
}

/// `<net>` with a name.
#[derive(Debug, Clone)]
struct Net {
    line: u32,
    name: String,
}

/// A file, understood, with a function for each device.
#[derive(Debug)]
pub(crate) struct Topology {
    /// A function comes after the port that it is behind.
    pub(crate) functions: Vec<Function>,
}

impl Topology {
    /// Reads `file` for the devices of these names.
    pub(crate) fn read(file: &Path, devices: &[&str]) -> Result<Self> {
        let context = || format!("--topology {}", file.display());
        let mut text = String::new();
        let read = File::open(file).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text));
        read.with_context(context)?;
        ensure!(text.len() as u64 <= LONGEST, "{}: longer than {LONGEST} bytes", context());
        Self::parse(&text, devices).with_context(context)
    }

    fn parse(text: &str, devices: &[&str]) -> Result<Self> {
        let mut functions = buses::functions(&xml::parse(text)?)?;
        assign(&mut functions, devices)?;
        Ok(Self { functions })
    }
}

/// Gives each device a network function: the one that has its name, else the next that has no device's name.
fn assign(functions: &mut [Function], devices: &[&str]) -> Result<()> {
    let mut named: Vec<Option<u32>> = vec![None; devices.len()];
    for function in functions.iter_mut() {
        let mut first: Option<&Net> = None;
        for net in &function.nets {
            let Some(index) = devices.iter().position(|device| *device == net.name) else { continue };
            let Net { line, name } = net;
            // Ports of one card are several `<net>`s of one name.
            if let Some(Net { line: other, name: another }) = first.filter(|first| first.name != *name) {
                bail!("line {line}: {name} is a device of its own, and line {other} has {another} for the same <pci>");
            }
            if let Some(other) = named.get(index).copied().flatten().filter(|_| first.is_none()) {
                bail!("line {line}: {name} is at line {other} already, in another <pci>");
            }
            if first.is_none() {
                first = Some(net);
                function.device = Some(index);
                if let Some(named) = named.get_mut(index) {
                    *named = Some(*line);
                }
            }
        }
    }
    for (index, device) in devices.iter().enumerate() {
        if functions.iter().any(|function| function.device == Some(index)) {
            continue;
        }
        let free = functions.iter_mut().find(|function| function.is_network() && function.device.is_none());
        match free {
            Some(function) => function.device = Some(index),
            None => {
                let count = functions.iter().filter(|function| function.is_network()).count();
                bail!(
                    "{count} network functions (class 0x02….) for {} devices: none is left for {device}",
                    devices.len()
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

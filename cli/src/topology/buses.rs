//! PCI functions of a machine that has what a file says: root complexes, ports, buses that nest.
//!
//! Each `<cpu>` becomes a root complex on a bus below all of its own. Functions of one bus share the port that they are
//! behind: a root port below a `<cpu>`, a downstream port below a switch. Bridges forward ranges of buses: hwloc takes the tree
//! from these ranges, NCCL and UCX from the paths.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::{Address, Cpu, Ids, Link, Locality, Net, Pci};

/// The first PCI domain of a tree: none that a machine has ("ur"). The preloaded library knows the first three digits.
pub(crate) const FIRST_DOMAIN: u16 = 0x7572;

/// The last.
const LAST_DOMAIN: u16 = 0x757f;

/// Class of a bridge between PCI buses.
const BRIDGE: u32 = 0x06_0400;

/// Classes of network controllers begin with it.
const NETWORK: u32 = 0x02;

/// A bridge's buses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buses {
    /// The bus that the bridge is on.
    pub(crate) primary: u8,
    /// The bus behind it.
    pub(crate) secondary: u8,
    /// The last bus that is reached through it.
    pub(crate) subordinate: u8,
}

/// Kind of a port of PCI Express, by its number in the capability (`PCI_EXP_TYPE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Endpoint = 0,
    Root = 4,
    Upstream = 5,
    Downstream = 6,
}

/// A PCI function.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    /// Address in the domain that stands for the file's.
    pub(crate) address: Address,
    /// Folder of the port or root complex that it is behind: `devices/pci7572:00`.
    pub(crate) behind: PathBuf,
    pub(crate) class: u32,
    pub(crate) ids: Option<Ids>,
    pub(crate) link: Link,
    pub(crate) port: Port,
    /// `None` of an endpoint.
    pub(crate) buses: Option<Buses>,
    pub(crate) locality: Locality,
    /// Network devices that the file gives it.
    pub(super) nets: Vec<Net>,
    has_nic: bool,
    /// Index of the device that it is.
    pub(crate) device: Option<usize>,
}

impl Function {
    /// The endpoint of a device without a topology: on a root complex of its own.
    pub(crate) fn alone(index: usize, locality: &Locality) -> Self {
        let bus = u8::try_from(index).unwrap_or(u8::MAX);
        let address = Address { domain: FIRST_DOMAIN, bus, device: 0, function: 0 };
        let mut function = endpoint(address, &root_complex(FIRST_DOMAIN, bus), locality);
        function.device = Some(index);
        function
    }

    /// Folder of the function, from the tree's root.
    pub(crate) fn folder(&self) -> PathBuf {
        self.behind.join(self.address.to_string())
    }

    /// Whether the function is a network card, as whose RDMA device an urxe device can appear.
    pub(crate) fn is_network(&self) -> bool {
        self.buses.is_none() && (self.class >> 16 == NETWORK || self.has_nic)
    }
}

fn endpoint(address: Address, behind: &Path, locality: &Locality) -> Function {
    Function {
        address,
        behind: behind.to_path_buf(),
        class: NETWORK << 16,
        ids: None,
        link: Link::DEFAULT,
        port: Port::Endpoint,
        buses: None,
        locality: locality.clone(),
        nets: Vec::new(),
        has_nic: false,
        device: None,
    }
}

fn root_complex(domain: u16, bus: u8) -> PathBuf {
    PathBuf::from(format!("devices/pci{domain:04x}:{bus:02x}"))
}

/// Adds what the file leaves out.
pub(super) fn functions(cpus: &[Cpu]) -> Result<Vec<Function>> {
    let mut tree = Tree::default();
    for cpu in cpus {
        tree.note(&cpu.below)?;
    }
    for cpu in cpus {
        for domain in tree.domains.clone() {
            let below: Vec<&Pci> = cpu.below.iter().filter(|pci| pci.address.domain == domain).collect();
            tree.add_root_complex(cpu, domain, &below)?;
        }
    }
    Ok(tree.functions)
}

#[derive(Default)]
struct Tree {
    /// Domains of the file, in the order of appearance.
    domains: Vec<u16>,
    /// Domains and buses that are taken.
    taken: BTreeSet<(u16, u8)>,
    addresses: BTreeSet<Address>,
    functions: Vec<Function>,
}

impl Tree {
    /// Notes the file's addresses.
    fn note(&mut self, all: &[Pci]) -> Result<()> {
        for pci in all {
            let Pci { address, line, .. } = pci;
            ensure!(self.addresses.insert(*address), "line {line}: another function at {address}");
            self.taken.insert((address.domain, address.bus));
            if !self.domains.contains(&address.domain) {
                self.domains.push(address.domain);
            }
            let most = usize::from(LAST_DOMAIN - FIRST_DOMAIN) + 1;
            ensure!(self.domains.len() <= most, "line {line}: another PCI domain than {most} before");
            self.note(&pci.below)?;
        }
        Ok(())
    }

    /// The domain that stands for the file's `domain`.
    fn shown(&self, domain: u16) -> u16 {
        let index = self.domains.iter().position(|known| *known == domain).unwrap_or_default();
        u16::try_from(index).map_or(LAST_DOMAIN, |index| FIRST_DOMAIN + index)
    }

    /// Takes the highest free bus from `from` to below `before`.
    fn take_bus(&mut self, domain: u16, from: u8, before: u8) -> Option<u8> {
        let bus = (from..before).rev().find(|bus| !self.taken.contains(&(domain, *bus)))?;
        self.taken.insert((domain, bus));
        Some(bus)
    }

    /// Adds the functions of `domain` that are not behind a switch.
    fn add_root_complex(&mut self, cpu: &Cpu, domain: u16, below: &[&Pci]) -> Result<()> {
        let Some(first) = below.iter().map(|pci| pci.address.bus).min() else { return Ok(()) };
        let Some(bus) = self.take_bus(domain, 0, first) else {
            bail!(
                "line {}: no bus number is left below {domain:04x}:{first:02x} for the root complex of this <cpu>",
                cpu.line
            );
        };
        let folder = root_complex(self.shown(domain), bus);
        self.add_groups(below, &folder, domain, bus, Port::Root, &cpu.locality)?;
        Ok(())
    }

    /// Adds a port on `bus` for each bus of `below`, and what is behind it. Returns the last bus that there is.
    fn add_groups(
        &mut self,
        below: &[&Pci],
        folder: &Path,
        domain: u16,
        bus: u8,
        port: Port,
        locality: &Locality,
    ) -> Result<u8> {
        let groups: BTreeSet<u8> = below.iter().map(|pci| pci.address.bus).collect();
        let mut last = bus;
        for (number, secondary) in (0_u8..).zip(groups) {
            let group: Vec<&Pci> = below.iter().copied().filter(|pci| pci.address.bus == secondary).collect();
            let Some(one) = group.first() else { continue };
            let Pci { line, address, link, .. } = one;
            ensure!(
                secondary > last,
                "line {line}: {address} is behind a bridge, or after a switch, with buses up to {last:02x}: buses rise from the \
                 root on, as a BIOS numbers them"
            );
            // The root complex itself is device 0.
            let number = number + u8::from(port == Port::Root);
            let shown = Address { domain: self.shown(domain), bus, device: number & 0x1f, function: number >> 5 };
            let at = self.functions.len();
            let bridge = Function { class: BRIDGE, link: *link, port, ..endpoint(shown, folder, locality) };
            let behind = bridge.folder();
            self.functions.push(bridge);
            last = secondary;
            for pci in group {
                last = last.max(self.add(pci, &behind, domain, locality)?);
            }
            if let Some(bridge) = self.functions.get_mut(at) {
                bridge.buses = Some(Buses { primary: bus, secondary, subordinate: last });
            }
        }
        Ok(last)
    }

    /// Adds a function of the file, and what is behind it. Returns the last bus that there is.
    fn add(&mut self, pci: &Pci, behind: &Path, domain: u16, locality: &Locality) -> Result<u8> {
        let Pci { line, address, class, ids, link, has_nic, nets, below } = pci;
        for other in below {
            ensure!(
                other.address.domain == domain,
                "line {}: {} is behind {address}, which is of another PCI domain",
                other.line,
                other.address
            );
        }
        let shown = Address { domain: self.shown(domain), ..*address };
        let at = self.functions.len();
        let function = Function {
            class: *class,
            ids: *ids,
            link: *link,
            nets: nets.clone(),
            has_nic: *has_nic,
            ..endpoint(shown, behind, locality)
        };
        let folder = function.folder();
        self.functions.push(function);
        let Some(first) = below.iter().map(|pci| pci.address.bus).min() else {
            return Ok(address.bus);
        };
        ensure!(
            class >> 8 == BRIDGE >> 8,
            "line {line}: <pci> within {address}, whose class {class:#08x} is no bridge's, 0x0604.."
        );
        let Some(bus) = self.take_bus(domain, address.bus.saturating_add(1), first) else {
            bail!(
                "line {line}: no bus number is left between the switch {address} and {domain:04x}:{first:02x} behind it, for its \
                 downstream ports"
            );
        };
        let below: Vec<&Pci> = below.iter().collect();
        let last = self.add_groups(&below, &folder, domain, bus, Port::Downstream, locality)?;
        if let Some(function) = self.functions.get_mut(at) {
            function.port = Port::Upstream;
            function.buses = Some(Buses { primary: address.bus, secondary: bus, subordinate: last });
        }
        Ok(last)
    }
}

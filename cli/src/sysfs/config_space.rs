//! Configuration space of a PCI function (`pci_regs.h` of Linux).

use crate::topology::{Function, Ids};

/// Bytes of a conventional function's configuration space.
const LENGTH: usize = 256;

/// Offset of the PCI Express capability.
const EXPRESS: u8 = 0x40;

/// Returns the bytes of `config`: a function, or a port with its buses, without memory or interrupts.
pub(super) fn config_space(function: &Function, ids: &Ids) -> Vec<u8> {
    let id = |vendor: u16, device: u16| [vendor.to_le_bytes(), device.to_le_bytes()].concat();
    let [interface, subclass, base, _] = function.class.to_le_bytes();
    let link = (u16::from(function.link.speed) | u16::from(function.link.width) << 4).to_le_bytes();
    // Speeds up to that of the link.
    let speeds = ((2_u16 << function.link.speed) - 2).to_le_bytes();
    let fields: [(u8, &[u8]); 9] = [
        (0x00, &id(ids.vendor, ids.device)),
        // Bus master; there is a list of capabilities.
        (0x04, &[0x04, 0x00, 0x10, 0x00]),
        (0x09, &[interface, subclass, base]),
        (0x34, &[EXPRESS]),
        // PCI Express, the last capability, version 2.
        (EXPRESS, &[0x10, 0x00, 0x02 | (function.port as u8) << 4, 0x00]),
        (EXPRESS + 0x0c, &link),
        (EXPRESS + 0x12, &link),
        (EXPRESS + 0x2c, &speeds),
        match function.buses {
            None => (0x2c, &id(ids.subsystem_vendor, ids.subsystem_device)),
            Some(buses) => (0x18, &[buses.primary, buses.secondary, buses.subordinate]),
        },
    ];
    let mut bytes = vec![0; LENGTH];
    for (at, field) in fields {
        for (to, from) in bytes.iter_mut().skip(at.into()).zip(field) {
            *to = *from;
        }
    }
    if let Some(header) = bytes.get_mut(0x0e).filter(|_| function.buses.is_some()) {
        // The header of a bridge.
        *header = 1;
    }
    bytes
}

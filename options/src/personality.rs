//! Appearance of devices to programs that read sysfs.

/// Bus that a device claims to be part of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Personality {
    /// A device without hardware, as the kernel's rxe: no `device` with a PCI path.
    #[default]
    Virtual,
    /// A function of a PCI device.
    Pci,
}

impl Personality {
    /// By the name that it is chosen by.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "virtual" => Some(Self::Virtual),
            "pci" => Some(Self::Pci),
            _ => None,
        }
    }
}

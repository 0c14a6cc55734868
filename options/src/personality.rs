//! Appearance of devices to programs that read sysfs.

use crate::NAME;

/// Bus that a device claims to be part of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Personality {
    /// A device without hardware, as the kernel's rxe: no `device` with a PCI path.
    #[default]
    Virtual,
    /// A function of a PCI device.
    Pci,
    /// As [`Pci`](Self::Pci), with the names and ids of a card of NVIDIA's, for programs that go by those alone.
    Mlx5,
}

impl Personality {
    /// Finds the choice of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "virtual" => Some(Self::Virtual),
            "pci" => Some(Self::Pci),
            "mlx5" => Some(Self::Mlx5),
            _ => None,
        }
    }

    /// Start of the names of devices that were not given one.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Virtual | Self::Pci => NAME,
            Self::Mlx5 => "mlx5_",
        }
    }
}

//! How packets get from one process to another of the same host.

/// The way between two processes of one host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Loopback {
    /// UDP over the interface, as to any other host.
    Udp,
    /// Shared memory where both ends choose it and are the same user's; UDP elsewhere.
    #[default]
    Shm,
}

impl Loopback {
    /// Finds the choice of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "udp" => Some(Self::Udp),
            "shm" => Some(Self::Shm),
            _ => None,
        }
    }
}

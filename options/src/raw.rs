//! How frames of an interface reach raw packet queue pairs.

/// The way of raw frames from the interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RawFrames {
    /// Packet sockets: copies of what the host's network stack gets.
    #[default]
    Packet,
    /// XDP: what rules want is taken away from the host's network stack.
    Xdp,
}

impl RawFrames {
    /// Finds the choice of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "packet" => Some(Self::Packet),
            "xdp" => Some(Self::Xdp),
            _ => None,
        }
    }
}

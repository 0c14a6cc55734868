//! Packet captures of a simulation, for Wireshark.

use std::io::{self, Write};

use urxe_engine::Instant;
use urxe_engine::endpoint::Datagram;
use urxe_pcapng::{Addresses, Direction, Writer};

/// Packets with the times they were sent at.
#[derive(Clone, Debug, Default)]
pub struct Capture(Vec<(Instant, Datagram)>);

impl Capture {
    pub(crate) fn push(&mut self, now: Instant, datagram: Datagram) {
        self.0.push((now, datagram));
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the packets as a pcapng file.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_pcapng(&self, mut to: impl Write) -> io::Result<()> {
        let mut file = Writer::new(concat!("urxe-sim ", env!("CARGO_PKG_VERSION")), 0);
        file.interface("sim", "a virtual network in virtual time");
        for (at, datagram) in &self.0 {
            let addresses = Addresses::new(datagram.from, datagram.to, 0);
            file.packet(0, Direction::Sent, at.as_nanos(), &addresses, &datagram.bytes, &[]);
        }
        to.write_all(file.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_reads_back() {
        let endpoints = |v4: &str, port| std::net::SocketAddr::new(v4.parse().unwrap(), port);
        let datagram =
            Datagram { from: endpoints("10.0.0.1", 49152), to: endpoints("10.0.0.2", 4791), bytes: vec![1; 20] };
        let mut capture = Capture::default();
        capture.push(Instant::from_nanos(1_000_000_007), datagram);
        let mut file = Vec::new();
        capture.write_pcapng(&mut file).unwrap();
        // Section, interface, one packet of 42 bytes of headers and 20 of the datagram.
        assert!(file.starts_with(&[0x0A, 0x0D, 0x0D, 0x0A]));
        let ports = [0xC0, 0, 0x12, 0xB7];
        assert!(file.windows(4).any(|bytes| bytes == ports), "the UDP header");
        assert!(file.windows(20).any(|bytes| bytes == [1; 20]), "the datagram");
    }
}

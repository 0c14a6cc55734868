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

    /// Number of packets.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the capture is empty.
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
    use std::net::SocketAddr;

    use urxe_wire::{Bth, Ext, Header, ICRC_LEN, Opcode, Operation, Psn, Qpn, Transport};

    use super::*;

    #[test]
    fn a_capture_reads_back() {
        let [from, to]: [SocketAddr; 2] = ["10.0.0.1:49152", "10.0.0.2:4791"].map(|at| at.parse().unwrap());
        let opcode = Opcode::new(Transport::Rc, Operation::SendOnly).unwrap();
        let bth = Bth::new(opcode, Qpn::new(0x12_3456), Psn::new(0xFF_FFFF));
        let header = Header::new(bth, Ext::None);
        let mut bytes = vec![1; header.len() + 4 + ICRC_LEN];
        header.emit(&mut bytes);
        let datagram = Datagram { from, to, bytes, is_marked: false };
        let mut capture = Capture::default();
        capture.push(Instant::from_nanos(1_000_000_007), datagram);
        let file = tempfile::NamedTempFile::new().unwrap();
        capture.write_pcapng(file.as_file()).unwrap();
        let packets = urxe_pcapng::packets(file.path()).unwrap();
        let [packet] = &packets[..] else { panic!("{packets:?}") };
        assert_eq!(packet.at, std::time::Duration::from_nanos(1_000_000_007));
        assert_eq!((packet.from, packet.to), (from.ip(), to.ip()));
        assert_eq!((packet.bth, packet.len, packet.outbound), (bth, 4, Some(true)));
    }
}

//! Blocks of a pcapng file.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness};

use crate::frame::{self, Addresses};

/// Direction of a packet (the low two bits of `epb_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Inbound.
    Received = 1,
    /// Outbound.
    Sent = 2,
}

/// Writes blocks into a buffer.
///
/// A caller that has written the buffer away clears it ([`Writer::clear`]) and goes on. Interfaces are numbered from 0 in the
/// order in which they are added.
pub struct Writer {
    blocks: PcapNgWriter<Vec<u8>>,
    snaplen: u32,
    scratch: Vec<u8>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("bytes", &self.bytes().len()).field("snaplen", &self.snaplen).finish()
    }
}

impl Writer {
    /// Starts a file by `application`, which keeps `snaplen` bytes of each packet; 0 is no limit.
    ///
    /// # Panics
    /// Never: writing to memory does not fail.
    #[must_use]
    pub fn new(application: &str, snaplen: u32) -> Self {
        let section = SectionHeaderBlock {
            endianness: Endianness::Little,
            options: vec![SectionHeaderOption::UserApplication(Cow::Owned(application.to_owned()))],
            ..SectionHeaderBlock::default()
        };
        let blocks = PcapNgWriter::with_section_header(Vec::new(), section).expect("memory takes every write");
        Self { blocks, snaplen, scratch: Vec::new() }
    }

    /// Appends an interface.
    pub fn interface(&mut self, name: &str, description: &str) {
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: self.snaplen,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(option_text(name).to_owned())),
                InterfaceDescriptionOption::IfDescription(Cow::Owned(option_text(description).to_owned())),
                // 10^-9 seconds.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        // Memory takes every write.
        let _ = self.blocks.write_pcapng_block(block);
    }

    /// Appends a packet (BTH to ICRC) of `interface`, captured `at` nanoseconds since 1970. A packet of an interface that was not
    /// added is left out.
    pub fn packet(
        &mut self,
        interface: u32,
        direction: Direction,
        at: u64,
        addresses: &Addresses,
        packet: &[u8],
        comments: &[String],
    ) {
        self.scratch.clear();
        let len = frame::headers(&mut self.scratch, addresses, packet) + packet.len();
        let keep = match self.snaplen {
            0 => len,
            snaplen => len.min(usize::try_from(snaplen).unwrap_or(len)),
        };
        self.scratch.extend_from_slice(packet.get(..keep.saturating_sub(self.scratch.len())).unwrap_or(packet));
        self.scratch.truncate(keep);
        let comments = comments.iter().map(|text| EnhancedPacketOption::Comment(Cow::Borrowed(option_text(text))));
        let block = EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(at),
            original_len: u32::try_from(len).unwrap_or(u32::MAX),
            data: Cow::Borrowed(&self.scratch),
            options: [EnhancedPacketOption::Flags(direction as u32)].into_iter().chain(comments).collect(),
        };
        // Memory takes every write.
        let _ = self.blocks.write_pcapng_block(block);
    }

    /// Returns the blocks appended since the start, or since the last [`Writer::clear`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.blocks.get_ref()
    }

    /// Forgets the blocks that were written away.
    pub fn clear(&mut self) {
        self.blocks.get_mut().clear();
    }
}

/// Cuts a text to the 16 bits of an option's length.
fn option_text(text: &str) -> &str {
    let mut end = text.len().min(usize::from(u16::MAX));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn blocks_say_their_length_twice_and_fill_words() {
        const PACKET: u32 = 6;
        let mut writer = Writer::new("urxe", 45);
        writer.interface("lo", "odd");
        let addresses = Addresses::new("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap(), 0);
        writer.packet(0, Direction::Sent, 7 << 32 | 5, &addresses, &[1; 5], &["why".to_owned()]);
        let out = writer.bytes();
        let (mut at, mut kinds) = (0, Vec::new());
        while at < out.len() {
            let len = word(out, at + 4) as usize;
            assert!(len.is_multiple_of(4) && word(out, at + len - 4) as usize == len, "block at {at}");
            kinds.push(word(out, at));
            if word(out, at) == PACKET {
                assert_eq!((word(out, at + 12), word(out, at + 16)), (7, 5), "high and low half of the time");
                assert_eq!((word(out, at + 20), word(out, at + 24)), (45, 47), "captured and original length");
            }
            at += len;
        }
        assert_eq!(kinds, [0x0A0D_0D0A, 1, PACKET]);
        writer.clear();
        assert!(writer.bytes().is_empty());
    }

    #[test]
    fn long_comments_are_cut_between_characters() {
        let text = "é".repeat(40_000);
        assert_eq!(option_text(&text).len(), 65_534);
    }
}

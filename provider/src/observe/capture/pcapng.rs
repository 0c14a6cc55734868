//! Blocks of a pcapng file (draft-ietf-opsawg-pcapng), little-endian.

/// Section Header Block.
const SECTION: u32 = 0x0A0D_0D0A;
/// Interface Description Block.
const INTERFACE: u32 = 1;
/// Enhanced Packet Block.
const PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;
/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;

const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// Which way a packet went (the low two bits of `epb_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Received = 1,
    Sent = 2,
}

/// Collects one block.
struct Block<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Block<'a> {
    fn new(out: &'a mut Vec<u8>, kind: u32) -> Self {
        let start = out.len();
        out.extend_from_slice(&kind.to_le_bytes());
        // The length, known at the end.
        out.extend_from_slice(&[0; 4]);
        Self { out, start }
    }

    fn u16(&mut self, value: u16) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        let pad = bytes.len().next_multiple_of(4) - bytes.len();
        self.out.extend_from_slice(&[0; 4][..pad]);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        // An option's length is 16 bits wide; comments are cut, the rest is short.
        let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
        self.u16(code);
        self.u16(u16::try_from(value.len()).unwrap_or(u16::MAX));
        self.padded(value);
    }

    fn finish(mut self) {
        self.u32(0); // opt_endofopt
        let len = u32::try_from(self.out.len() + 4 - self.start).unwrap_or(u32::MAX);
        self.u32(len);
        if let Some(place) = self.out.get_mut(self.start + 4..self.start + 8) {
            place.copy_from_slice(&len.to_le_bytes());
        }
    }
}

/// Appends the start of a file.
pub(super) fn section(out: &mut Vec<u8>, application: &str) {
    let mut block = Block::new(out, SECTION);
    block.u32(BYTE_ORDER_MAGIC);
    block.u16(1);
    block.u16(0);
    // The section's length: not known.
    block.u32(u32::MAX);
    block.u32(u32::MAX);
    block.option(SHB_USERAPPL, application.as_bytes());
    block.finish();
}

/// Appends an interface; interfaces are numbered from 0 in this order. 0 bytes of `snaplen` is no limit.
pub(super) fn interface(out: &mut Vec<u8>, name: &str, description: &str, snaplen: u32) {
    let mut block = Block::new(out, INTERFACE);
    block.u16(ETHERNET);
    block.u16(0);
    block.u32(snaplen);
    block.option(IF_NAME, name.as_bytes());
    block.option(IF_DESCRIPTION, description.as_bytes());
    // 10^-9 seconds.
    block.option(IF_TSRESOL, &[9]);
    block.finish();
}

/// A packet to be written.
pub(super) struct Record<'a> {
    pub(super) interface: u32,
    /// Nanoseconds since 1970.
    pub(super) at: u64,
    pub(super) direction: Direction,
    /// What is kept of it, from the Ethernet header on.
    pub(super) bytes: &'a [u8],
    /// How long it was.
    pub(super) len: usize,
    pub(super) comments: &'a [String],
}

/// Appends a packet.
pub(super) fn packet(out: &mut Vec<u8>, record: &Record<'_>) {
    let mut block = Block::new(out, PACKET);
    block.u32(record.interface);
    let [a, b, c, d, e, f, g, h] = record.at.to_le_bytes();
    block.u32(u32::from_le_bytes([e, f, g, h]));
    block.u32(u32::from_le_bytes([a, b, c, d]));
    block.u32(u32::try_from(record.bytes.len()).unwrap_or(u32::MAX));
    block.u32(u32::try_from(record.len).unwrap_or(u32::MAX));
    block.padded(record.bytes);
    block.option(EPB_FLAGS, &(record.direction as u32).to_le_bytes());
    for comment in record.comments {
        block.option(OPT_COMMENT, comment.as_bytes());
    }
    block.finish();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn blocks_say_their_length_twice_and_fill_words() {
        let mut out = Vec::new();
        section(&mut out, "urxe");
        interface(&mut out, "lo", "odd", 96);
        let comments = ["why".to_owned()];
        let record = Record {
            interface: 0,
            at: 7 << 32 | 5,
            direction: Direction::Sent,
            bytes: &[1; 5],
            len: 9,
            comments: &comments,
        };
        packet(&mut out, &record);
        let (mut at, mut kinds) = (0, Vec::new());
        while at < out.len() {
            let len = word(&out, at + 4) as usize;
            assert!(len.is_multiple_of(4) && word(&out, at + len - 4) as usize == len, "block at {at}");
            kinds.push(word(&out, at));
            if word(&out, at) == PACKET {
                assert_eq!((word(&out, at + 12), word(&out, at + 16)), (7, 5), "high and low half of the time");
                assert_eq!((word(&out, at + 20), word(&out, at + 24)), (5, 9), "captured and original length");
            }
            at += len;
        }
        assert_eq!(kinds, [SECTION, INTERFACE, PACKET]);
    }
}

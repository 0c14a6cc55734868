//! The base transport header: in every packet.

use crate::{Malformed, Opcode, PKey, Psn, Qpn};

/// Base transport header (IBA 9.2).
// The member of two bytes is not where a word begins: compilers read it there as a word, and a processor that has just stored
// the two bytes of it waits for them to reach the cache.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// Operation, which decides the headers that follow.
    pub opcode: Opcode,
    /// The partition.
    pub p_key: PKey,
    /// The QP the packet is for.
    pub dest_qp: Qpn,
    /// The packet's place in its direction's sequence.
    pub psn: Psn,
    /// SE: the responder should raise a completion event.
    pub solicited_event: bool,
    /// MigReq: the migration state. Queue pairs without an alternate path ignore it; the kernel's rxe sends 0, cards 1.
    pub mig_req: bool,
    /// PadCnt: bytes added to make the payload a multiple of four; at most 3.
    pub pad_count: u8,
    /// Forward congestion notification (IBA annex A10; outside the ICRC).
    pub fecn: bool,
    /// Backward congestion notification; set in a CNP.
    pub becn: bool,
    /// AckReq: the responder should acknowledge soon. Means nothing where nothing is acknowledged, and is no
    /// reason to drop a packet there: the kernel's rxe sets it in CM datagrams to this day, and set it on UC and
    /// UD until 2024.
    pub ack_req: bool,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A header with every flag off, no padding and the default P_Key.
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited_event: false,
            mig_req: false,
            pad_count: 0,
            p_key: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Reads the header.
    ///
    /// # Errors
    /// [`Malformed::Opcode`] for one the table does not have, [`Malformed::TransportVersion`] unless TVer is 0.
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        Self::parse_opcode(bytes).map(|opcode| Self::parse_behind(opcode, bytes))
    }

    /// Reads the opcode of a header that is well formed.
    #[inline(always)]
    pub(crate) fn parse_opcode(bytes: &[u8; Self::LEN]) -> Result<Opcode, Malformed> {
        let [opcode, flags, ..] = *bytes;
        //= spec/packets.md#pkt-003
        //# A packet of another transport header version than 0 MUST be dropped.
        if flags & 0x0F != 0 {
            return Err(Malformed::TransportVersion);
        }
        //= spec/packets.md#pkt-002
        //# An opcode that the table does not name MUST be refused before anything behind the BTH is read.
        Opcode::from_u8(opcode).ok_or(Malformed::Opcode(opcode))
    }

    /// Reads what the header has besides its opcode.
    // Apart, so that no header is moved out of a `Result`: it would be read in other pieces than it was just written in.
    #[inline(always)]
    pub(crate) const fn parse_behind(opcode: Opcode, bytes: &[u8; Self::LEN]) -> Self {
        let [_, flags, pk0, pk1, t0, t1, t2, t3, p0, p1, p2, p3] = *bytes;
        let target = u32::from_be_bytes([t0, t1, t2, t3]);
        let place = u32::from_be_bytes([p0, p1, p2, p3]);
        Self {
            opcode,
            solicited_event: flags & 0x80 != 0,
            mig_req: flags & 0x40 != 0,
            pad_count: (flags >> 4) & 3,
            p_key: PKey(u16::from_be_bytes([pk0, pk1])),
            fecn: target >> 31 & 1 != 0,
            becn: target >> 30 & 1 != 0,
            dest_qp: Qpn::new(target),
            ack_req: place >> 31 & 1 != 0,
            psn: Psn::new(place),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let flag = |on: bool, bit: u32| u32::from(on) << bit;
        let operation = u32::from(self.opcode.to_u8()) << 24
            | flag(self.solicited_event, 23)
            | flag(self.mig_req, 22)
            | u32::from(self.pad_count & 3) << 20
            | u32::from(self.p_key.0);
        let target = flag(self.fecn, 31) | flag(self.becn, 30) | self.dest_qp.get();
        let place = flag(self.ack_req, 31) | self.psn.get();
        bytes[0..4].copy_from_slice(&operation.to_be_bytes());
        bytes[4..8].copy_from_slice(&target.to_be_bytes());
        bytes[8..12].copy_from_slice(&place.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Transport};

    const BYTES: [u8; Bth::LEN] = [0x04, 0xB0, 0x7F, 0xFF, 0x40, 0x12, 0x34, 0x56, 0x80, 0xAB, 0xCD, 0xE0];
    const HEADER: Bth = Bth {
        opcode: Opcode::new(Transport::Rc, Operation::SendOnly).unwrap(),
        solicited_event: true,
        mig_req: false,
        pad_count: 3,
        p_key: PKey(0x7FFF),
        fecn: false,
        becn: true,
        dest_qp: Qpn::new(0x12_3456),
        ack_req: true,
        psn: Psn::new(0xAB_CDE0),
    };

    #[test]
    fn parses() {
        assert_eq!(Bth::parse(&BYTES).unwrap(), HEADER);
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; Bth::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn each_flag_is_where_it_belongs() {
        let plain = Bth::new(HEADER.opcode, Qpn::new(0), Psn::new(0));
        let bytes = |bth: Bth| {
            let mut bytes = [0xA5; Bth::LEN];
            bth.emit(&mut bytes);
            assert_eq!(Bth::parse(&bytes), Ok(bth));
            bytes
        };
        assert_eq!(bytes(plain), [0x04, 0, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(Bth { solicited_event: true, ..plain })[1], 0x80);
        assert_eq!(bytes(Bth { mig_req: true, ..plain })[1], 0x40);
        assert_eq!(bytes(Bth { pad_count: 1, ..plain })[1], 0x10);
        assert_eq!(bytes(Bth { pad_count: 2, ..plain })[1], 0x20);
        assert_eq!(bytes(Bth { fecn: true, ..plain })[4], 0x80);
        assert_eq!(bytes(Bth { becn: true, ..plain })[4], 0x40);
        assert_eq!(bytes(Bth { ack_req: true, ..plain })[8], 0x80);
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut bytes = BYTES;
        bytes[4] |= 0x3F;
        bytes[8] |= 0x7F;
        assert_eq!(Bth::parse(&bytes), Ok(HEADER));
    }

    #[test]
    fn other_versions_are_malformed() {
        for bit in [0x01, 0x02, 0x04, 0x08] {
            let mut bytes = BYTES;
            bytes[1] |= bit;
            assert_eq!(Bth::parse(&bytes), Err(Malformed::TransportVersion));
        }
    }

    #[test]
    fn unknown_opcodes_are_malformed() {
        let mut bytes = BYTES;
        bytes[0] = 0x15;
        assert_eq!(Bth::parse(&bytes), Err(Malformed::Opcode(0x15)));
    }
}

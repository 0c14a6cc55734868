//! The base transport header: in every packet.

use crate::{Malformed, Opcode, PKey, Psn, Qpn};

/// Base transport header (IBA 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is; also which headers follow.
    pub opcode: Opcode,
    /// SE: the responder should raise a completion event.
    pub solicited_event: bool,
    /// MigReq: the migration state. Receivers here ignore it; the kernel's rxe sends 0, cards 1.
    pub mig_req: bool,
    /// PadCnt: bytes added to make the payload a multiple of four; at most 3.
    pub pad_count: u8,
    /// The partition.
    pub p_key: PKey,
    /// Forward congestion notification (IBA annex A10; outside the ICRC).
    pub fecn: bool,
    /// Backward congestion notification; set in a CNP.
    pub becn: bool,
    /// The QP the packet is for.
    pub dest_qp: Qpn,
    /// AckReq: the responder should acknowledge soon.
    pub ack_req: bool,
    /// The packet's place in its direction's sequence.
    pub psn: Psn,
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
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let [opcode, flags, pk0, pk1, congestion, q0, q1, q2, ack, p0, p1, p2] = *bytes;
        if flags & 0x0F != 0 {
            return Err(Malformed::TransportVersion);
        }
        Ok(Self {
            opcode: Opcode::from_u8(opcode).ok_or(Malformed::Opcode(opcode))?,
            solicited_event: flags & 0x80 != 0,
            mig_req: flags & 0x40 != 0,
            pad_count: (flags >> 4) & 3,
            p_key: PKey(u16::from_be_bytes([pk0, pk1])),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            dest_qp: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            ack_req: ack & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, p0, p1, p2])),
        })
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let [pk0, pk1] = self.p_key.0.to_be_bytes();
        let [_, q0, q1, q2] = self.dest_qp.get().to_be_bytes();
        let [_, p0, p1, p2] = self.psn.get().to_be_bytes();
        *bytes = [
            self.opcode.to_u8(),
            flag(self.solicited_event, 0x80) | flag(self.mig_req, 0x40) | (self.pad_count & 3) << 4,
            pk0,
            pk1,
            flag(self.fecn, 0x80) | flag(self.becn, 0x40),
            q0,
            q1,
            q2,
            flag(self.ack_req, 0x80),
            p0,
            p1,
            p2,
        ];
    }
}

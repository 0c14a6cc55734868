//! Bytes of a WRITE that came behind a gap, stored at once.
//!
//! The bytes of one message may be stored in any order (IBA 9.5), and a copy is saved: at 1 % lost nearly all packets come behind a
//! gap. Programs that wait for the last byte rely on it to come last, so the last packet waits for its turn, as do the packets of
//! later messages. In its turn a packet is checked as ever; only the copy is left out.

use urxe_wire::Packet;
use urxe_wire::opcode::Kind;

use super::responder::{Inbound, ask};
use crate::access::Access;
use crate::host::{Host, Io};
use crate::memory::{self, Ask, Touch};
use crate::qp::QueuePair;
use crate::quirks::Quirks as _;

impl<H: Host> QueuePair<H> {
    /// Stores the bytes of a packet behind a gap, if it is from the middle of the WRITE under way. Returns whether they are stored.
    //= spec/selective.md#sel-011
    //# Bytes of a WRITE MAY be stored before those in front of them, if they are of the same message and not of its last packet.
    pub(in crate::qp) fn store_early(&self, io: &Io<'_, H>, packet: &Packet<'_>) -> bool {
        let Some(Inbound::Write { reth, received }) = &self.responder.inbound else { return false };
        let (bth, mtu) = (packet.bth(), self.attr.path_mtu.bytes());
        let info = bth.opcode.info();
        let is_middle = info.kind == Kind::Write && !info.position.starts() && !info.position.ends();
        let may = self.attr.access.contains(Access::REMOTE_WRITE) && self.config.quirks.writes().is_none();
        if !is_middle || packet.payload.len() != mtu || !may {
            return false;
        }
        // All packets before it are of this message and full, or this is no packet of the message.
        let behind = u64::from(bth.psn.advance_from(self.responder.expected));
        let offset = u64::from(*received) + behind * mtu as u64;
        let Some(va) = reth.va.checked_add(offset).filter(|_| offset + (mtu as u64) < u64::from(reth.dma_len)) else {
            return false;
        };
        let part = Ask { va, length: mtu as u64, ..ask(self.peer(io), reth, Access::REMOTE_WRITE) };
        memory::access(io.memory, &part, Touch::Write(packet.payload)).is_ok()
    }
}

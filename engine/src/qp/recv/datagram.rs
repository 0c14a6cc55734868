//! The responder of UD (IBA 9.8.3): each packet is a message.

use urxe_wire::packet::Service;
use urxe_wire::{Ext, Packet, grh};

use crate::cq::{Cqe, FrameCompletion, WcOpcode, WcStatus};
use crate::event::{DropReason, Event};
use crate::fault::ResponderFault;
use crate::host::{Consumer, Host, Io, Network};
use crate::qp::sge::scatter;
use crate::qp::{Origin, QueuePair};

/// Bytes at the start of a receive buffer that the network header gets (IBA 11.4.1.2, `ibv_post_recv(3)`).
//= spec/unreliable.md#unr-005
//# The receive buffer of a datagram MUST begin with 40 bytes of network header.
const GRH_LEN: usize = 40;

impl<H: Host> QueuePair<H> {
    /// Takes a datagram. What is wrong with it costs nobody anything but itself: it is dropped (IBA 9.8.3.2, table of
    /// responder error behaviour, class D), also when the receive buffer is too short, as on the kernel's rxe.
    pub(in crate::qp) fn handle_datagram(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
        origin: &Origin<H>,
    ) -> bool {
        let received = self.receive_datagram(io, packet, origin);
        if let Err(reason) = received {
            self.drop_packet(io, packet, reason);
        }
        received.is_ok()
    }

    fn receive_datagram(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
        origin: &Origin<H>,
    ) -> Result<(), DropReason> {
        let Service::Datagram(deth) = packet.header.service else { return Err(DropReason::Transport) };
        // IBA 9.6.1.3.1 f.: also for multicast.
        //= spec/unreliable.md#unr-003
        //# A datagram whose Q_Key is not the queue pair's MUST be dropped.
        if deth.q_key != self.attr.q_key {
            return Err(DropReason::QKey);
        }
        let (info, psn) = (packet.bth().opcode.info(), packet.bth().psn);
        let qpn = self.config.qpn;
        let refuse = |io: &mut Io<'_, H>, fault| {
            io.consumer.trace(qpn, Event::ResponderFault { fault, psn });
            DropReason::Refused
        };
        if !info.payload.allows(packet.payload.len(), self.attr.path_mtu) {
            return Err(refuse(io, ResponderFault::Length));
        }
        let wr = self.take_recv(io).ok_or(DropReason::NoReceive)?;
        let length = GRH_LEN + packet.payload.len();
        if wr.buffers.length() < length as u64 {
            self.give_back(Some(wr));
            return Err(refuse(io, ResponderFault::RecvTooShort));
        }
        let len = packet.header.len() + packet.payload.len() + usize::from(packet.bth().pad_count);
        let grh = io.network.network_header(origin, len);
        let kind = grh::Kind::of(&grh);
        // Where there is no GRH, nothing is said of these bytes (IBA 11.4.1.2).
        let has_none = kind == grh::Kind::Grh && deth.lid_routed;
        let pd = self.recv_pd(io);
        let stored = if has_none { Ok(()) } else { scatter(io.memory, pd, &wr.buffers, 0, &grh) };
        let stored = stored.and_then(|()| scatter(io.memory, pd, &wr.buffers, GRH_LEN, packet.payload));
        if let Err(refusal) = stored {
            self.local_fault(io, ResponderFault::RecvProtection(refusal), Some(wr), psn);
            return Ok(());
        }
        let cqe = Cqe {
            wr_id: wr.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            qpn: self.config.qpn,
            byte_len: u32::try_from(length).unwrap_or(u32::MAX),
            imm: if let Ext::ImmDt(imm) = packet.ext() { Some(*imm) } else { None },
            invalidated: None,
            at: io.time_for(self.config.recv_cq.as_ref()),
            src_qp: deth.src_qp,
            solicited: packet.bth().solicited_event,
            grh: (!has_none).then_some(kind),
            slid: io.network.source_lid(origin),
            frame: FrameCompletion::default(),
            refusal: None,
        };
        self.complete_recv(io, cqe);
        Ok(())
    }
}

//! Packets as one line for logs and event traces, in Wireshark's words and formats: numbers that it shows in
//! hexadecimal are so here.

use core::fmt;

use crate::feth::FlushLevel;
use crate::packet::Service;
use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bitmap, Bth, Credits, Deth, Ext, Feth, Header, Ieth, ImmDt, NakCode, PKey, Packet,
    Reth, RnrTimer, SelectiveAck, SelectiveOffer, Syndrome, XrcEth,
};

/// The headers, then `Len`, the bytes of payload, and `PadCnt`, where they are not 0. Of a selective acknowledgement, the
/// ranges of PSNs that arrived instead.
impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.header.fmt(f)?;
        if let (Ext::SelectiveAck(_), Some(bitmap)) = (self.ext(), Bitmap::new(self.payload)) {
            return bitmap.ranges(self.bth().psn).try_for_each(|(first, last)| match first == last {
                true => write!(f, " {first}"),
                false => write!(f, " {first}-{last}"),
            });
        }
        if !self.payload.is_empty() {
            write!(f, " Len={}", self.payload.len())?;
        }
        if self.header.bth.pad_count != 0 {
            write!(f, " PadCnt={}", self.header.bth.pad_count)?;
        }
        Ok(())
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bth.fmt(f)?;
        match &self.service {
            Service::Connected => {}
            Service::Datagram(deth) => write!(f, " {deth}")?,
            Service::Xrc(xrceth) => write!(f, " {xrceth}")?,
        }
        match &self.ext {
            Ext::None | Ext::CnpReserved => Ok(()),
            Ext::Reth(reth) => write!(f, " {reth}"),
            Ext::RethImmDt(reth, imm_dt) => write!(f, " {reth} {imm_dt}"),
            Ext::ImmDt(imm_dt) => write!(f, " {imm_dt}"),
            Ext::Ieth(ieth) => write!(f, " {ieth}"),
            Ext::AtomicEth(atomic) => write!(f, " {atomic}"),
            Ext::Aeth(aeth) => write!(f, " {aeth}"),
            Ext::AethAtomicAckEth(aeth, ack) => write!(f, " {aeth} {ack}"),
            Ext::FethReth(feth, reth) => write!(f, " {feth} {reth}"),
            Ext::SelectiveOffer(offer) => write!(f, " {offer}"),
            Ext::SelectiveAck(ack) => write!(f, " {ack}"),
        }
    }
}

/// Opcode, QP and PSN; the P_Key if it is not the default one; flags that are set.
impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} QP={} PSN={}", self.opcode, self.dest_qp, self.psn)?;
        if self.p_key != PKey::DEFAULT {
            write!(f, " P_Key={:#06x}", self.p_key.0)?;
        }
        let flags = [
            (self.solicited_event, " SE"),
            (self.mig_req, " MigReq"),
            (self.fecn, " FECN"),
            (self.becn, " BECN"),
            (self.ack_req, " AckReq"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| f.write_str(name))
    }
}

impl fmt::Display for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Q_Key={:#010x} SrcQP={}", self.q_key.0, self.src_qp)
    }
}

impl fmt::Display for XrcEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SRQ={}", self.xrc_srq)
    }
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VA={:#018x} R_Key={:#010x} DMALen={}", self.va, self.r_key.0, self.dma_len)
    }
}

impl fmt::Display for ImmDt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImmDt={:#010x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Display for Ieth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RKey={:#010x}", self.r_key.0)
    }
}

impl fmt::Display for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { va, r_key, swap_add, compare } = self;
        write!(f, "VA={va:#018x} R_Key={:#010x} SwapDt={swap_add} CmpDt={compare}", r_key.0)
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MSN={}", self.syndrome, self.msn.get())
    }
}

impl fmt::Display for AtomicAckEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OrigRemDt={}", self.original)
    }
}

impl fmt::Display for SelectiveOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window={}{}", self.window, if self.answer { " Answer" } else { "" })
    }
}

impl fmt::Display for SelectiveAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Duplicates={}", self.duplicates)
    }
}

/// Wireshark 4.0 does not know FLUSH; the words are those of IBA annex A19.
impl fmt::Display for Feth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.level {
            FlushLevel::Range => "Range",
            FlushLevel::Region => "Region",
        })?;
        let types = [(self.global_visibility, " GlobalVisibility"), (self.persistence, " Persistence")];
        types.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| f.write_str(name))
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack(credits) => write!(f, "Ack Credits={credits}"),
            Self::RnrNak(timer) => write!(f, "RNR Nak Timer={timer}"),
            Self::Nak(code) => write!(f, "Nak {code}"),
        }
    }
}

/// The code, not the number it stands for; 31 is "not counted".
impl fmt::Display for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code().fmt(f)
    }
}

impl fmt::Display for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.duration().as_micros();
        write!(f, "{}.{:02}ms", micros / 1000, micros % 1000 / 10)
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequenceError => "PSN Sequence Error",
            Self::InvalidRequest => "Invalid Request",
            Self::RemoteAccessError => "Remote Access Error",
            Self::RemoteOperationalError => "Remote Operational Error",
            Self::InvalidRdRequest => "Invalid RD Request",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;
    use crate::{Msn, Opcode, Operation, Psn, QKey, Qpn, RKey, Transport};

    fn bth(transport: Transport, operation: Operation) -> Bth {
        Bth::new(Opcode::new(transport, operation).unwrap(), Qpn::new(0x12), Psn::new(0x12_3456))
    }

    fn rc(operation: Operation, ext: Ext) -> Header {
        Header::new(bth(Transport::Rc, operation), ext)
    }

    const RETH: Reth = Reth { va: 0x7F12_3456_7000, r_key: RKey(0x50A), dma_len: 2500 };

    #[test]
    fn requests() {
        let header = rc(Operation::WriteFirst, Ext::Reth(RETH));
        assert_eq!(
            Packet { header, payload: &[0; 1024] }.to_string(),
            "RC RDMA WRITE First QP=0x000012 PSN=1193046 VA=0x00007f1234567000 R_Key=0x0000050a DMALen=2500 Len=1024"
        );
        let mut header = rc(Operation::WriteOnlyWithImmediate, Ext::RethImmDt(RETH, ImmDt([0xC0, 0xFF, 0xEE, 0x42])));
        header.bth.pad_count = 3;
        header.bth.solicited_event = true;
        header.bth.ack_req = true;
        assert_eq!(
            Packet { header, payload: &[1] }.to_string(),
            "RC RDMA WRITE Only with Immediate QP=0x000012 PSN=1193046 SE AckReq VA=0x00007f1234567000 \
             R_Key=0x0000050a DMALen=2500 ImmDt=0xc0ffee42 Len=1 PadCnt=3"
        );
        assert_eq!(
            rc(Operation::SendOnlyWithInvalidate, Ext::Ieth(Ieth { r_key: RKey(0x50A) })).to_string(),
            "RC SEND Only with Invalidate QP=0x000012 PSN=1193046 RKey=0x0000050a"
        );
        let atomic = AtomicEth { va: 0x7F12_3456_7000, r_key: RKey(0x50A), swap_add: 5, compare: 7 };
        assert_eq!(
            rc(Operation::CompareSwap, Ext::AtomicEth(atomic)).to_string(),
            "RC CmpSwap QP=0x000012 PSN=1193046 VA=0x00007f1234567000 R_Key=0x0000050a SwapDt=5 CmpDt=7"
        );
        let feth = Feth { global_visibility: true, persistence: true, level: FlushLevel::Range };
        assert_eq!(
            rc(Operation::Flush, Ext::FethReth(feth, RETH)).to_string(),
            "RC FLUSH QP=0x000012 PSN=1193046 Range GlobalVisibility Persistence VA=0x00007f1234567000 \
             R_Key=0x0000050a DMALen=2500"
        );
    }

    #[test]
    fn responses() {
        let acknowledge =
            |syndrome| rc(Operation::Acknowledge, Ext::Aeth(Aeth { syndrome, msn: Msn::new(7) })).to_string();
        let start = "RC Acknowledge QP=0x000012 PSN=1193046 ";
        assert_eq!(acknowledge(Syndrome::Ack(Credits::INVALID)), [start, "Ack Credits=31 MSN=7"].concat());
        assert_eq!(acknowledge(Syndrome::RnrNak(RnrTimer::new(14))), [start, "RNR Nak Timer=1.28ms MSN=7"].concat());
        assert_eq!(
            acknowledge(Syndrome::Nak(NakCode::RemoteAccessError)),
            [start, "Nak Remote Access Error MSN=7"].concat()
        );
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits::from_wqes(3)), msn: Msn::new(7) };
        assert_eq!(
            rc(Operation::AtomicAcknowledge, Ext::AethAtomicAckEth(aeth, AtomicAckEth { original: 9 })).to_string(),
            "RC ATOMIC Acknowledge QP=0x000012 PSN=1193046 Ack Credits=3 MSN=7 OrigRemDt=9"
        );
    }

    #[test]
    fn other_services() {
        let deth = Deth { q_key: QKey(0x1122_3344), src_qp: Qpn::new(0x29), lid_routed: false };
        let datagram = Header {
            bth: bth(Transport::Ud, Operation::SendOnlyWithImmediate),
            service: Service::Datagram(deth),
            ext: Ext::ImmDt(ImmDt([0, 0, 0, 1])),
        };
        assert_eq!(
            datagram.to_string(),
            "UD SEND Only with Immediate QP=0x000012 PSN=1193046 Q_Key=0x11223344 SrcQP=0x000029 ImmDt=0x00000001"
        );
        let mut xrc = Header {
            bth: bth(Transport::Xrc, Operation::SendMiddle),
            service: Service::Xrc(XrcEth { xrc_srq: Qpn::new(0x33) }),
            ext: Ext::None,
        };
        xrc.bth.p_key = PKey(0x8001);
        assert_eq!(xrc.to_string(), "XRC SEND Middle QP=0x000012 PSN=1193046 P_Key=0x8001 SRQ=0x000033");
        let cnp = Bth { becn: true, ..Bth::new(Opcode::CNP, Qpn::new(0xD2), Psn::new(0)) };
        assert_eq!(Header::new(cnp, Ext::CnpReserved).to_string(), "CNP QP=0x0000d2 PSN=0 BECN");
    }

    /// Times as Wireshark lists them (`tshark -G values`).
    #[test]
    fn timers() {
        let timers = [0, 1, 9, 16, 31].map(|code| RnrTimer::new(code).to_string());
        assert_eq!(timers, ["655.36ms", "0.01ms", "0.24ms", "2.56ms", "491.52ms"]);
    }
}

//! The part of a program that finds headers, as `flow::frame` does.
//!
//! R0 is the place that is looked at, from the beginning of the frame; R4 the protocol behind an IP header.

use super::asm::{Alu, Assembler, If, Label, Reg, Size};
use super::{CURSOR, END, FARTHEST, FRAME, Header, PLACES, at_least, place};
use crate::flow::frame::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_TEB, EXTENSIONS, FRAGMENT, IPPROTO_GRE, IPPROTO_TCP, IPPROTO_UDP,
    MOST_EXTENSIONS, MOST_TAGS, VLAN_TAGS, VXLAN_PORT,
};

/// Length of the MAC addresses, and of an Ethernet header.
const MACS: i32 = 12;
const HEADER: usize = 14;

/// Notes where headers are; with `is_inner` those of the frame inside a tunnel as well.
pub(super) fn find(asm: &mut Assembler, is_inner: bool) {
    let mut finder = Finder { inner: None, done: asm.label() };
    if is_inner {
        finder.inner = Some(Inner { ethernet: asm.label(), network: asm.label() });
    }
    asm.alu(Alu::Move, Reg::R0, 0);
    finder.ethernet(asm, false);
    if let Some(inner) = finder.inner {
        asm.place(inner.ethernet);
        finder.ethernet(asm, true);
        asm.place(inner.network);
        finder.network(asm, true);
    }
    asm.place(finder.done);
}

/// Where it goes on with the frame inside a tunnel.
#[derive(Clone, Copy)]
struct Inner {
    ethernet: Label,
    /// With the ethertype in R3.
    network: Label,
}

#[derive(Clone, Copy)]
struct Finder {
    inner: Option<Inner>,
    done: Label,
}

/// A number of 16 bits in a frame, as this host reads it.
const fn read(number: u16) -> i32 {
    u16::from_ne_bytes(number.to_be_bytes()) as i32
}

impl Finder {
    /// Has R1 point to what R0 is the place of, if so many bytes are there.
    fn fetch(self, asm: &mut Assembler, bytes: usize) {
        asm.jump_if(Reg::R0, If::Greater, FARTHEST, self.done);
        asm.store(Size::Half, PLACES, CURSOR, Reg::R0);
        asm.load(Size::Half, Reg::R0, PLACES, CURSOR);
        asm.alu(Alu::And, Reg::R0, FARTHEST);
        asm.alu_register(Alu::Move, Reg::R1, Reg::R0);
        asm.alu_register(Alu::Add, Reg::R1, FRAME);
        at_least(asm, Reg::R1, bytes, self.done);
    }

    fn note(asm: &mut Assembler, header: Header, is_inner: bool, at: Reg) {
        asm.store(Size::Half, PLACES, place(header, is_inner), at);
    }

    fn ethernet(self, asm: &mut Assembler, is_inner: bool) {
        self.fetch(asm, HEADER);
        Self::note(asm, Header::Ethernet, is_inner, Reg::R0);
        asm.alu(Alu::Add, Reg::R0, MACS);
        asm.alu(Alu::Add, Reg::R1, MACS);
        let behind_tags = asm.label();
        for tag in 0..MOST_TAGS {
            let is_tag = asm.label();
            asm.load(Size::Half, Reg::R3, Reg::R1, 0);
            let [customer, provider] = VLAN_TAGS.map(read);
            asm.jump_if(Reg::R3, If::Equal, customer, is_tag);
            asm.jump_if(Reg::R3, If::NotEqual, provider, behind_tags);
            asm.place(is_tag);
            at_least(asm, Reg::R1, 6, behind_tags);
            if tag == 0 {
                asm.alu_register(Alu::Move, Reg::R3, Reg::R0);
                asm.alu(Alu::Add, Reg::R3, 2);
                Self::note(asm, Header::VlanTci, is_inner, Reg::R3);
            }
            asm.alu(Alu::Add, Reg::R0, 4);
            asm.alu(Alu::Add, Reg::R1, 4);
        }
        asm.place(behind_tags);
        Self::note(asm, Header::EtherType, is_inner, Reg::R0);
        asm.load(Size::Half, Reg::R3, Reg::R1, 0);
        asm.alu(Alu::Add, Reg::R0, 2);
        if is_inner && let Some(inner) = self.inner {
            // It is what comes next.
            asm.jump(inner.network);
        } else {
            self.network(asm, is_inner);
        }
    }

    /// R3 is the ethertype.
    fn network(self, asm: &mut Assembler, is_inner: bool) {
        let (is_v4, transport) = (asm.label(), asm.label());
        asm.jump_if(Reg::R3, If::Equal, read(ETHERTYPE_IPV4), is_v4);
        asm.jump_if(Reg::R3, If::NotEqual, read(ETHERTYPE_IPV6), self.done);
        self.ipv6(asm, is_inner, transport);
        asm.place(is_v4);
        self.ipv4(asm, is_inner);
        asm.place(transport);
        self.transport(asm, is_inner);
    }

    /// Goes on behind itself, with the protocol in R4.
    fn ipv4(self, asm: &mut Assembler, is_inner: bool) {
        self.fetch(asm, 20);
        asm.load(Size::Byte, Reg::R3, Reg::R1, 0);
        asm.alu_register(Alu::Move, Reg::R4, Reg::R3);
        asm.alu(Alu::ShiftRight, Reg::R4, 4);
        asm.jump_if(Reg::R4, If::NotEqual, 4, self.done);
        asm.alu(Alu::And, Reg::R3, 15);
        asm.alu(Alu::ShiftLeft, Reg::R3, 2);
        asm.jump_if(Reg::R3, If::Less, 20, self.done);
        asm.alu_register(Alu::Move, Reg::R2, Reg::R1);
        asm.alu_register(Alu::Add, Reg::R2, Reg::R3);
        asm.jump_if_register(Reg::R2, If::Greater, END, self.done);
        Self::note(asm, Header::Ipv4, is_inner, Reg::R0);
        asm.load(Size::Half, Reg::R5, Reg::R1, 6);
        asm.jump_if(Reg::R5, If::AnyBit, read(0x1fff), self.done);
        asm.load(Size::Byte, Reg::R4, Reg::R1, 9);
        asm.alu_register(Alu::Add, Reg::R0, Reg::R3);
    }

    /// Goes to `transport` with the protocol in R4.
    fn ipv6(self, asm: &mut Assembler, is_inner: bool, transport: Label) {
        self.fetch(asm, 40);
        asm.load(Size::Byte, Reg::R3, Reg::R1, 0);
        asm.alu(Alu::ShiftRight, Reg::R3, 4);
        asm.jump_if(Reg::R3, If::NotEqual, 6, self.done);
        Self::note(asm, Header::Ipv6, is_inner, Reg::R0);
        asm.load(Size::Byte, Reg::R4, Reg::R1, 6);
        asm.alu(Alu::Add, Reg::R0, 40);
        for _ in 0..MOST_EXTENSIONS {
            let (is_extension, next) = (asm.label(), asm.label());
            for extension in EXTENSIONS {
                asm.jump_if(Reg::R4, If::Equal, extension.into(), is_extension);
            }
            asm.jump_if(Reg::R4, If::NotEqual, FRAGMENT.into(), transport);
            self.fetch(asm, 8);
            asm.load(Size::Half, Reg::R3, Reg::R1, 2);
            asm.jump_if(Reg::R3, If::AnyBit, read(0xfff8), self.done);
            asm.load(Size::Byte, Reg::R4, Reg::R1, 0);
            asm.alu(Alu::Add, Reg::R0, 8);
            asm.jump(next);
            asm.place(is_extension);
            self.fetch(asm, 8);
            asm.load(Size::Byte, Reg::R4, Reg::R1, 0);
            asm.load(Size::Byte, Reg::R3, Reg::R1, 1);
            asm.alu(Alu::Add, Reg::R3, 1);
            asm.alu(Alu::ShiftLeft, Reg::R3, 3);
            asm.alu_register(Alu::Add, Reg::R0, Reg::R3);
            asm.place(next);
        }
        asm.jump(transport);
    }

    fn transport(self, asm: &mut Assembler, is_inner: bool) {
        let (is_tcp, is_udp) = (asm.label(), asm.label());
        asm.jump_if(Reg::R4, If::Equal, IPPROTO_TCP.into(), is_tcp);
        asm.jump_if(Reg::R4, If::Equal, IPPROTO_UDP.into(), is_udp);
        if is_inner {
            // Tunnels are not looked for inside of tunnels.
            asm.jump(self.done);
        } else {
            asm.jump_if(Reg::R4, If::NotEqual, IPPROTO_GRE.into(), self.done);
            self.gre(asm);
        }
        asm.place(is_tcp);
        self.fetch(asm, 20);
        Self::note(asm, Header::Tcp, is_inner, Reg::R0);
        asm.jump(self.done);
        asm.place(is_udp);
        self.fetch(asm, 8);
        Self::note(asm, Header::Udp, is_inner, Reg::R0);
        if is_inner {
            asm.jump(self.done);
            return;
        }
        asm.load(Size::Half, Reg::R3, Reg::R1, 2);
        asm.jump_if(Reg::R3, If::NotEqual, read(VXLAN_PORT), self.done);
        at_least(asm, Reg::R1, 16, self.done);
        asm.alu(Alu::Add, Reg::R0, 8);
        Self::note(asm, Header::Vxlan, false, Reg::R0);
        asm.alu(Alu::Add, Reg::R0, 8);
        asm.jump(self.inner.map_or(self.done, |inner| inner.ethernet));
    }

    fn gre(self, asm: &mut Assembler) {
        self.fetch(asm, 4);
        Self::note(asm, Header::Gre, false, Reg::R0);
        asm.load(Size::Half, Reg::R4, Reg::R1, 0);
        asm.jump_if(Reg::R4, If::AnyBit, read(7), self.done);
        asm.load(Size::Half, Reg::R5, Reg::R1, 2);
        asm.alu(Alu::Add, Reg::R0, 4);
        let [no_checksum, no_key, is_cut, no_sequence] = [(); 4].map(|()| asm.label());
        let unless = |asm: &mut Assembler, bit: u16, label: Label| {
            asm.alu_register(Alu::Move, Reg::R3, Reg::R4);
            asm.and_32(Reg::R3, read(bit).cast_unsigned());
            asm.jump_if(Reg::R3, If::Equal, 0, label);
        };
        unless(asm, 0x8000, no_checksum);
        asm.alu(Alu::Add, Reg::R0, 4);
        asm.place(no_checksum);
        unless(asm, 0x2000, no_key);
        asm.alu_register(Alu::Move, Reg::R1, Reg::R0);
        asm.jump_if(Reg::R1, If::Greater, FARTHEST, self.done);
        asm.alu_register(Alu::Add, Reg::R1, FRAME);
        at_least(asm, Reg::R1, 4, is_cut);
        Self::note(asm, Header::GreKey, false, Reg::R0);
        asm.place(is_cut);
        asm.alu(Alu::Add, Reg::R0, 4);
        asm.place(no_key);
        let Some(inner) = self.inner else { return asm.jump(self.done) };
        unless(asm, 0x1000, no_sequence);
        asm.alu(Alu::Add, Reg::R0, 4);
        asm.place(no_sequence);
        asm.jump_if(Reg::R5, If::Equal, read(ETHERTYPE_TEB), inner.ethernet);
        asm.alu_register(Alu::Move, Reg::R3, Reg::R5);
        asm.jump(inner.network);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::flow::spec::{self, Match};

    /// Appends ethertype, tags, network and transport headers, and perhaps a tunnel with all of that in it.
    pub(in crate::flow::xdp) fn append_headers(frame: &mut Vec<u8>, below: &mut impl FnMut(usize) -> usize) {
        for _ in 0..below(4) {
            frame.extend(VLAN_TAGS[below(2)].to_be_bytes());
            frame.extend([0, 5]);
        }
        let kind = [ETHERTYPE_IPV4, ETHERTYPE_IPV6, 0x0806][below(3)];
        frame.extend(kind.to_be_bytes());
        append_network(frame, kind, below, true);
    }

    fn append_network(frame: &mut Vec<u8>, kind: u16, below: &mut impl FnMut(usize) -> usize, may_tunnel: bool) {
        let protocol = [IPPROTO_TCP, IPPROTO_UDP, IPPROTO_UDP, IPPROTO_GRE, 1][below(5)];
        if kind == ETHERTYPE_IPV4 {
            let words = 4 + u8::try_from(below(4)).unwrap();
            frame.extend([0x40 | words, 0, 0, 0, 0, 0, if below(8) == 0 { 0x20 } else { 0 }]);
            frame.extend([u8::from(below(8) == 0), 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            frame.extend((20..usize::from(words) * 4).map(|_| 0));
        } else if kind == ETHERTYPE_IPV6 {
            let extensions: Vec<u8> = (0..below(3)).map(|_| [0, 43, 60, FRAGMENT][below(4)]).collect();
            let mut next = extensions.iter().copied().chain([protocol]);
            frame.extend([0x60, 0, 0, 0, 0, 0, next.next().unwrap(), 64]);
            frame.extend([1; 32]);
            for (extension, next) in extensions.iter().zip(next) {
                let more = if *extension == FRAGMENT { 0 } else { below(2) };
                frame.extend([next, u8::try_from(more).unwrap(), 0, u8::from(below(6) == 0) * 8, 0, 0, 0, 0]);
                frame.extend((0..more * 8).map(|_| 0));
            }
        } else {
            return frame.extend([0; 28]);
        }
        match protocol {
            IPPROTO_UDP => {
                let port = [VXLAN_PORT, 7][below(2)];
                frame.extend([0x12, 0x34]);
                frame.extend(port.to_be_bytes());
                frame.extend([0; 4]);
                if port == VXLAN_PORT {
                    frame.extend([8, 0, 0, 0, 0, 0, 9, 0]);
                    if may_tunnel {
                        frame.extend([2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 4]);
                        append_headers(frame, below);
                    }
                }
            }
            IPPROTO_GRE => {
                let flags = [0, 0x8000, 0x2000, 0x3000, 0xb000, 1][below(6)];
                let inner = [ETHERTYPE_TEB, ETHERTYPE_IPV4, ETHERTYPE_IPV6][below(3)];
                frame.extend([u16::to_be_bytes(flags), inner.to_be_bytes()].concat());
                for bit in [0x8000, 0x2000, 0x1000] {
                    frame.extend((0..if flags & bit == 0 { 0 } else { 4 }).map(|_| 7));
                }
                if inner == ETHERTYPE_TEB {
                    frame.extend([2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 4]);
                    append_headers(frame, below);
                } else {
                    append_network(frame, inner, below, false);
                }
            }
            _ => frame.extend([0, 80, 0, 81, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        }
    }

    /// Some specifications, the values of which are in the frame with some luck.
    pub(in crate::flow::xdp) fn some_match(below: &mut impl FnMut(usize) -> usize, frame: &[u8]) -> Match {
        const KINDS: [(u32, usize, usize); 8] = [
            (0x20, 6, 16),
            (0x30, 8, 8),
            (0x32, 8, 12),
            (0x31, 8, 40),
            (0x40, 6, 4),
            (0x41, 6, 4),
            (0x50, 8, 4),
            (0x51, 8, 8),
        ];
        let mut bytes = Vec::new();
        let count = 1 + below(3);
        for _ in 0..count {
            let (kind, start, length) = KINDS[below(KINDS.len())];
            let inner = if kind < 0x50 && below(3) == 0 { 0x100 } else { 0 };
            let (size, begin) = ((start + 2 * length).next_multiple_of(4), bytes.len());
            bytes.extend((kind | inner).to_ne_bytes());
            bytes.extend(u16::try_from(size).unwrap().to_ne_bytes());
            bytes.resize(begin + size, 0);
            // Mostly no bit of any field is wanted, and else one or two bytes.
            for _ in 0..below(3) {
                let at = begin + start + below(length);
                bytes[at + length] = [0xff, 0xf0, 1][below(3)];
                bytes[at] = if below(2) == 0 { 0 } else { frame.get(below(64)).copied().unwrap_or(7) };
            }
        }
        spec::parse(&bytes, u8::try_from(count).unwrap()).map(|parsed| parsed.0).unwrap_or_default()
    }
}

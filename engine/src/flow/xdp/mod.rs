//! eBPF programs for XDP that take away from the host what rules want, and let everything else pass.
//!
//! A program takes a frame exactly if a rule that traps is met, but for frames whose headers it does not reach: those pass. It finds
//! the headers as [`Headers::parse`](super::Headers::parse) does, and notes where they are in a map: the kernel's verifier knows nothing of what a map
//! holds, so that the ways through the headers do not multiply with the rules.

mod asm;
mod headers;
pub mod interpreter;

use super::frame::Header;
use super::spec::{Criterion, Match};
use super::table::{Class, Rule};
use asm::{Alu, Assembler, Helper, If, Label, Reg, Size};

pub use asm::{Instruction, Map, Program};

/// Bytes of an element of [`Map::Offsets`].
pub const OFFSETS: u32 = 2 * SIDE + 8;
/// Bytes for the headers of a frame, and for those of the frame inside its tunnel.
const SIDE: u32 = 24;
/// Where the place that is looked at is put, and read again: what is known of it is forgotten by that.
const CURSOR: i16 = 48;
const _: () = assert!(CURSOR as u32 == 2 * SIDE);
/// Farthest place of a header that is looked at. That of one that is not there is beyond, 16 bits of ones.
const FARTHEST: i32 = 0x3fff;
/// `XDP_PASS`.
const PASS: i32 = 2;
/// `struct xdp_md`: beginning and end of the frame, and queue of the interface.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;
/// Most instructions: the kernel takes a million, and looks at them in more than one way.
const MOST: usize = 32_768;

/// Registers that keep what they hold.
const CONTEXT: Reg = Reg::R6;
const FRAME: Reg = Reg::R7;
const END: Reg = Reg::R8;
const PLACES: Reg = Reg::R9;

/// Makes a program for these rules, of frames up to `longest` bytes; longer ones pass. `None` if no rule traps, or there are too many:
/// then every frame is to pass.
pub fn program<'a, T: 'a>(rules: impl Iterator<Item = &'a Rule<T>>, longest: usize) -> Option<Program> {
    let rules: alloc::vec::Vec<_> = rules
        .filter(|rule| rule.class != Class::Sniffer && !rule.dont_trap)
        .map(|rule| (rule.class, &rule.wanted))
        .collect();
    if rules.is_empty() {
        return None;
    }
    let mut asm = Assembler::default();
    let pass = asm.label();
    asm.alu_register(Alu::Move, CONTEXT, Reg::R1);
    asm.load(Size::Word, FRAME, CONTEXT, DATA);
    asm.load(Size::Word, END, CONTEXT, DATA_END);
    asm.alu_register(Alu::Move, Reg::R2, FRAME);
    asm.alu(Alu::Add, Reg::R2, i32::try_from(longest).ok()? + 1);
    asm.jump_if_register(Reg::R2, If::LessOrEqual, END, pass);
    places(&mut asm, pass);
    let is_inner = rules.iter().any(|(_, wanted)| wanted.headers().any(|(_, is_inner)| is_inner));
    headers::find(&mut asm, is_inner);
    for (class, wanted) in rules {
        let next = asm.label();
        match class {
            Class::Normal => meet(&mut asm, wanted, next)?,
            Class::MulticastDefault => {
                at_least(&mut asm, FRAME, 1, next);
                asm.load(Size::Byte, Reg::R3, FRAME, 0);
                asm.and_32(Reg::R3, 1);
                asm.jump_if(Reg::R3, If::Equal, 0, next);
            }
            Class::AllDefault | Class::Sniffer => {}
        }
        take(&mut asm);
        asm.place(next);
        if class == Class::AllDefault || (class == Class::Normal && wanted.is_any()) {
            // The kernel refuses instructions that nothing leads to.
            break;
        }
        if asm.len() > MOST {
            return None;
        }
    }
    asm.place(pass);
    asm.alu(Alu::Move, Reg::R0, PASS);
    asm.exit();
    asm.finish()
}

/// Finds where places of headers are noted, and notes that there are none.
fn places(asm: &mut Assembler, pass: Label) {
    asm.store_immediate(Size::Word, Reg::R10, -4, 0);
    asm.load_map(Reg::R1, Map::Offsets);
    asm.alu_register(Alu::Move, Reg::R2, Reg::R10);
    asm.alu(Alu::Add, Reg::R2, -4);
    asm.call(Helper::MapLookup);
    asm.jump_if(Reg::R0, If::Equal, 0, pass);
    asm.alu_register(Alu::Move, PLACES, Reg::R0);
    for at in (0..OFFSETS).step_by(8) {
        asm.store_immediate(Size::Double, PLACES, i16::try_from(at).unwrap_or_default(), -1);
    }
}

/// Where the place of a header is noted.
fn place(header: Header, is_inner: bool) -> i16 {
    let at = header as u32 * 2 + if is_inner { SIDE } else { 0 };
    i16::try_from(at).unwrap_or_default()
}

/// Goes to `short` unless so many bytes are there from `at` on, which is a pointer into the frame.
fn at_least(asm: &mut Assembler, at: Reg, bytes: usize, short: Label) {
    asm.alu_register(Alu::Move, Reg::R2, at);
    asm.alu(Alu::Add, Reg::R2, i32::try_from(bytes).unwrap_or(FARTHEST));
    asm.jump_if_register(Reg::R2, If::Greater, END, short);
}

/// Goes to `next` unless the frame meets the condition. `None` if it cannot be put so.
fn meet(asm: &mut Assembler, wanted: &Match, next: Label) -> Option<()> {
    for (header, is_inner) in wanted.headers() {
        asm.load(Size::Half, Reg::R1, PLACES, place(header, is_inner));
        asm.jump_if(Reg::R1, If::Greater, FARTHEST, next);
        let criteria = || wanted.criteria.iter().filter(move |of| of.header == header && of.is_inner == is_inner);
        let Some(end) = criteria().map(|criterion| criterion.offset + criterion.bytes.len()).max() else { continue };
        asm.alu_register(Alu::Add, Reg::R1, FRAME);
        at_least(asm, Reg::R1, end, next);
        for criterion in criteria() {
            compare(asm, criterion, next)?;
        }
    }
    Some(())
}

/// Compares bytes behind R1, which are there.
fn compare(asm: &mut Assembler, criterion: &Criterion, next: Label) -> Option<()> {
    let (mut at, mut bytes) = (i16::try_from(criterion.offset).ok()?, &criterion.bytes[..]);
    while !bytes.is_empty() {
        let (size, width) = match bytes.len() {
            4.. => (Size::Word, 4),
            2 | 3 => (Size::Half, 2),
            _ => (Size::Byte, 1),
        };
        let (part, rest) = bytes.split_at(width);
        // As a number of this host that is read from there.
        let number = |of: fn(&(u8, u8)) -> u8| {
            let mut padded = [0; 4];
            padded.iter_mut().zip(part).for_each(|(to, from)| *to = of(from));
            match size {
                Size::Half => u16::from_ne_bytes([padded[0], padded[1]]).into(),
                Size::Byte => padded[0].into(),
                Size::Word | Size::Double => u32::from_ne_bytes(padded),
            }
        };
        let (value, mask) = (number(|byte| byte.0), number(|byte| byte.1));
        if mask != 0 {
            asm.load(size, Reg::R3, Reg::R1, at);
            asm.and_32(Reg::R3, mask);
            asm.jump_if_32(Reg::R3, If::NotEqual, value, next);
        }
        (bytes, at) = (rest, at + i16::try_from(width).ok()?);
    }
    Some(())
}

/// Gives the frame to the socket of its queue; to the host, if there is none.
fn take(asm: &mut Assembler) {
    asm.load_map(Reg::R1, Map::Sockets);
    asm.load(Size::Word, Reg::R2, CONTEXT, QUEUE);
    asm.alu(Alu::Move, Reg::R3, PASS);
    asm.call(Helper::RedirectMap);
    asm.exit();
}

#[cfg(test)]
mod tests {
    use super::super::spec::Actions;
    use super::super::{FlowTable, Headers};
    use super::*;

    fn rule(class: Class, wanted: Match, dont_trap: bool) -> Rule<()> {
        Rule { class, priority: 0, wanted, actions: Actions::default(), dont_trap, target: () }
    }

    fn takes(rules: &[Rule<()>], frame: &[u8]) -> Option<bool> {
        interpreter::run(&program(rules.iter(), 1514)?, frame)
    }

    #[test]
    fn rules_that_do_not_trap_take_nothing() {
        assert!(program([rule(Class::Normal, Match::default(), true)].iter(), 1514).is_none());
        assert!(program([rule(Class::Sniffer, Match::default(), false)].iter(), 1514).is_none());
        assert!(program(FlowTable::<()>::default().rules(), 1514).is_none());
    }

    #[test]
    fn default_rules() {
        let (mut group, one) = ([0_u8; 60], [0_u8; 60]);
        group[0] = 1;
        let of = |class| [rule(class, Match::default(), false)];
        for (class, of_group, of_one) in
            [(Class::Normal, true, true), (Class::AllDefault, true, true), (Class::MulticastDefault, true, false)]
        {
            assert_eq!(takes(&of(class), &group), Some(of_group));
            assert_eq!(takes(&of(class), &one), Some(of_one));
        }
        assert_eq!(takes(&of(Class::AllDefault), &[0; 1514]), Some(true));
        assert_eq!(takes(&of(Class::AllDefault), &[0; 1515]), Some(false), "too long for the socket's memory");
    }

    /// Frames in which any header may be anywhere: a program takes what a rule wants, and nothing else.
    #[test]
    fn programs_and_rules_agree() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = move |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(random >> 33).unwrap() % bound
        };
        let mut met = 0;
        for _ in 0..20_000 {
            let mut frame = alloc::vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
            headers::tests::append_headers(&mut frame, &mut below);
            frame.truncate(if below(4) == 0 { below(frame.len() + 1) } else { frame.len() });
            let parsed = Headers::parse(&frame);
            let wanted = headers::tests::some_match(&mut below, &frame);
            let is_met = wanted.is_met(&parsed);
            met += usize::from(is_met);
            assert_eq!(
                takes(&[rule(Class::Normal, wanted.clone(), false)], &frame),
                Some(is_met),
                "{wanted:?} {frame:x?}"
            );
        }
        assert!(met > 1_000, "{met}");
    }
}

//! Classic BPF programs (`SO_ATTACH_FILTER` of socket(7)) that keep what no rule wants in the kernel.
//!
//! A program passes every frame that some rule matches, and may pass others: it looks at the outermost headers, and at no
//! ports. The kernel runs it on frames whose first VLAN tag it has taken out.

use alloc::vec::Vec;

use super::frame::{Header, VLAN_TAGS};
use super::spec::{Criterion, Match};
use super::table::{Class, Rule};

/// One instruction (`struct sock_filter`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions skipped if the comparison holds.
    pub if_true: u8,
    /// Instructions skipped if it does not.
    pub if_false: u8,
    /// Operand.
    pub operand: u32,
}

/// Length of the longest program that the kernel takes (`BPF_MAXINSNS`).
pub const MOST: usize = 4096;
/// Bytes of a frame that pass: all.
const PASS: u32 = u32::MAX;

const LD_W: u16 = 0x20;
const LD_H: u16 = 0x28;
const LD_B: u16 = 0x30;
const LD_LEN: u16 = 0x80;
const AND: u16 = 0x54;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const RET: u16 = 0x06;

/// Offsets in a frame without tags.
const ETHERTYPE_AT: u32 = 12;
const NETWORK_AT: u32 = 14;

/// Network headers: ethertype, and length without options.
const NETWORKS: [(Header, u32, u32); 2] = [(Header::Ipv4, 0x0800, 20), (Header::Ipv6, 0x86dd, 40)];
/// Protocol numbers in an IPv4 header.
const PROTOCOLS: [(Header, u8); 4] = [(Header::Tcp, 6), (Header::Udp, 17), (Header::Vxlan, 17), (Header::Gre, 47)];

/// Makes a program for these rules; `None` where all frames must pass.
pub fn program<'a, T: 'a>(rules: impl Iterator<Item = &'a Rule<T>>) -> Option<Vec<Instruction>> {
    let mut program = Vec::new();
    for rule in rules {
        match rule.class {
            Class::AllDefault | Class::Sniffer => return None,
            Class::Normal if rule.wanted.is_any() => return None,
            Class::MulticastDefault => Block::multicast().append_to(&mut program)?,
            Class::Normal => Block::of(&rule.wanted).append_to(&mut program)?,
        }
        if program.len() >= MOST {
            return None;
        }
    }
    program.push(Instruction { code: RET, if_true: 0, if_false: 0, operand: 0 });
    (program.len() <= MOST).then_some(program)
}

/// Comparisons of one rule; the first that fails goes on with the next rule.
#[derive(Default)]
struct Block(Vec<Step>);

enum Step {
    /// Operation on the accumulator.
    Do(u16, u32),
    /// Goes on if the comparison holds.
    Need(u16, u32),
    /// Passes the frame if the accumulator is this.
    PassIf(u32),
}

impl Block {
    fn multicast() -> Self {
        let mut block = Self::default();
        block.at_least(1);
        block.compare(0, &[(1, 1)]);
        block
    }

    fn of(wanted: &Match) -> Self {
        let mut block = Self::default();
        block.at_least(NETWORK_AT);
        let outer = |header: Header| {
            wanted.criteria.iter().filter(move |criterion| criterion.header == header && !criterion.is_inner)
        };
        let needs = |header| wanted.needs.contains(&(header, false));
        for criterion in outer(Header::Ethernet) {
            block.criterion(0, criterion);
        }
        let network = NETWORKS.into_iter().find(|(header, ..)| needs(*header));
        if network.is_some() || outer(Header::EtherType).next().is_some() {
            // Behind a second tag nothing is where it is looked for.
            block.0.push(Step::Do(LD_H, ETHERTYPE_AT));
            block.0.extend(VLAN_TAGS.map(|tag| Step::PassIf(tag.into())));
        }
        for criterion in outer(Header::EtherType) {
            block.criterion(ETHERTYPE_AT, criterion);
        }
        if let Some((header, kind, length)) = network {
            block.0.extend([Step::Do(LD_H, ETHERTYPE_AT), Step::Need(JEQ, kind)]);
            block.at_least(NETWORK_AT + length);
            for criterion in outer(header) {
                block.criterion(NETWORK_AT, criterion);
            }
            for (_, protocol) in PROTOCOLS.into_iter().filter(|(of, _)| header == Header::Ipv4 && needs(*of)) {
                block.compare(NETWORK_AT + 9, &[(protocol, 0xff)]);
            }
        }
        block
    }

    /// Loads beyond the end of a frame would end the program, and no other rule would be asked.
    fn at_least(&mut self, length: u32) {
        self.0.extend([Step::Do(LD_LEN, 0), Step::Need(JGE, length)]);
    }

    fn criterion(&mut self, start: u32, criterion: &Criterion) {
        self.compare(start + u32::try_from(criterion.offset).unwrap_or_default(), &criterion.bytes);
    }

    /// Compares bytes from `at` on with values under their masks.
    fn compare(&mut self, mut at: u32, mut bytes: &[(u8, u8)]) {
        while !bytes.is_empty() {
            let (code, width) = match bytes.len() {
                4.. => (LD_W, 4),
                2 | 3 => (LD_H, 2),
                _ => (LD_B, 1),
            };
            let (part, rest) = bytes.split_at(width);
            let number = |of: fn(&(u8, u8)) -> u8| part.iter().fold(0, |sum, byte| sum << 8 | u32::from(of(byte)));
            let (value, mask) = (number(|byte| byte.0), number(|byte| byte.1));
            if mask != 0 {
                self.0.extend([Step::Do(code, at), Step::Do(AND, mask), Step::Need(JEQ, value)]);
            }
            (bytes, at) = (rest, at + u32::try_from(width).unwrap_or_default());
        }
    }

    /// Appends the instructions; `None` if jumps would be too far.
    fn append_to(self, program: &mut Vec<Instruction>) -> Option<()> {
        let count = self.0.len();
        for (index, step) in self.0.into_iter().enumerate() {
            // To the instruction that passes the frame, and behind it.
            let to_pass = u8::try_from(count - index - 1).ok()?;
            let to_next = to_pass.checked_add(1)?;
            program.push(match step {
                Step::Do(code, operand) => Instruction { code, if_true: 0, if_false: 0, operand },
                Step::Need(code, operand) => Instruction { code, if_true: 0, if_false: to_next, operand },
                Step::PassIf(operand) => Instruction { code: JEQ, if_true: to_pass, if_false: 0, operand },
            });
        }
        program.push(Instruction { code: RET, if_true: 0, if_false: 0, operand: PASS });
        Some(())
    }
}

/// Runs a program as the kernel does, and returns whether the frame passes. For tests: `None` for an instruction that
/// [`program`] does not make.
#[must_use]
pub fn run(program: &[Instruction], frame: &[u8]) -> Option<bool> {
    let load = |at: u32, width: usize| {
        let bytes = frame.get(at as usize..)?.get(..width)?;
        Some(bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    };
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let Instruction { code, if_true, if_false, operand } = *program.get(at)?;
        at += 1;
        let loaded = match code {
            LD_W => load(operand, 4),
            LD_H => load(operand, 2),
            LD_B => load(operand, 1),
            LD_LEN => u32::try_from(frame.len()).ok(),
            AND => Some(accumulator & operand),
            JEQ | JGE => {
                let holds = if code == JEQ { accumulator == operand } else { accumulator >= operand };
                at += usize::from(if holds { if_true } else { if_false });
                continue;
            }
            RET => return Some(operand != 0),
            _ => return None,
        };
        let Some(value) = loaded else { return Some(false) };
        accumulator = value;
    }
}

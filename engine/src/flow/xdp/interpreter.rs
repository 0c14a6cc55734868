//! Runs programs without a kernel, for tests and fuzzing.

use super::asm::{
    ALU_32, ALU_64, Alu, CALL, EXIT, Helper, If, Instruction, JUMP, JUMP_32, LOAD, LOAD_WIDE, Program, REGISTER, STORE,
    STORE_IMMEDIATE, Size,
};
use super::{DATA, DATA_END, OFFSETS, PASS, QUEUE};

/// Where memory is: none of it is close to another's.
const CONTEXT: u64 = 1 << 32;
const FRAME: u64 = 2 << 32;
const PLACES: u64 = 3 << 32;
/// Beginning of the stack; its end is in R10.
const STACK: u64 = 4 << 32;
const STACK_LENGTH: usize = 512;
const MAP: u64 = 5 << 32;
/// `XDP_REDIRECT`.
const REDIRECT: u64 = 4;
/// Instructions after which a program that does not end is given up.
const MOST: usize = 1 << 20;

struct Machine<'a> {
    registers: [u64; 11],
    frame: &'a [u8],
    places: [u8; OFFSETS as usize],
    stack: [u8; STACK_LENGTH],
}

/// Runs a program, and returns whether it takes the frame. `None` if it does what the kernel would not allow.
#[must_use]
pub fn run(program: &Program, frame: &[u8]) -> Option<bool> {
    let mut registers = [0; 11];
    (registers[1], registers[10]) = (CONTEXT, STACK + STACK_LENGTH as u64);
    let mut machine = Machine { registers, frame, places: [0; OFFSETS as usize], stack: [0; STACK_LENGTH] };
    let mut at = 0_usize;
    for _ in 0..MOST {
        let instruction = *program.instructions.get(at)?;
        at += 1;
        match instruction.code {
            EXIT => {
                return match machine.registers[0] {
                    REDIRECT => Some(true),
                    result => (result == u64::from(PASS.cast_unsigned())).then_some(false),
                };
            }
            LOAD_WIDE => {
                *machine.to(&instruction)? = MAP;
                at += 1;
            }
            CALL if instruction.immediate == i32::from(Helper::MapLookup as u8) => machine.registers[0] = PLACES,
            CALL if instruction.immediate == i32::from(Helper::RedirectMap as u8) => machine.registers[0] = REDIRECT,
            code => {
                if machine.step(code, &instruction)? {
                    at = at.checked_add_signed(instruction.offset.into())?;
                }
            }
        }
    }
    None
}

impl Machine<'_> {
    fn to(&mut self, of: &Instruction) -> Option<&mut u64> {
        self.registers.get_mut(usize::from(of.registers & 0xf))
    }

    fn from(&self, of: &Instruction) -> Option<u64> {
        self.registers.get(usize::from(of.registers >> 4)).copied()
    }

    /// Executes an instruction, and returns whether it jumps.
    fn step(&mut self, code: u8, of: &Instruction) -> Option<bool> {
        let immediate = i64::from(of.immediate).cast_unsigned();
        let operand = if code & REGISTER != 0 { self.from(of)? } else { immediate };
        let to = *self.to(of)?;
        let (class, operation) = (code & 7, code & 0xf0);
        let width = 1
            << match code & 0x18 {
                size if size == Size::Byte as u8 => 0,
                size if size == Size::Half as u8 => 1,
                size if size == Size::Word as u8 => 2,
                _ => 3,
            };
        let offset = i64::from(of.offset);
        match class {
            ALU_64 => *self.to(of)? = alu(operation, to, operand)?,
            ALU_32 => *self.to(of)? = alu(operation, to & 0xffff_ffff, operand & 0xffff_ffff)? & 0xffff_ffff,
            JUMP => return compare(operation, to, operand),
            JUMP_32 => return compare(operation, to & 0xffff_ffff, operand & 0xffff_ffff),
            class if class == LOAD & 7 => {
                let value = self.load(self.from(of)?.checked_add_signed(offset)?, width)?;
                *self.to(of)? = value;
            }
            class if class == STORE & 7 => self.store(to.checked_add_signed(offset)?, width, self.from(of)?)?,
            class if class == STORE_IMMEDIATE & 7 => self.store(to.checked_add_signed(offset)?, width, immediate)?,
            _ => return None,
        }
        Some(false)
    }

    fn load(&self, at: u64, width: usize) -> Option<u64> {
        let length = self.frame.len() as u64;
        if at & !0xff == CONTEXT {
            return [(DATA, FRAME), (DATA_END, FRAME + length), (QUEUE, 0)]
                .into_iter()
                .find_map(|(offset, value)| (at - CONTEXT == u64::from(offset.cast_unsigned())).then_some(value));
        }
        let bytes = match at >> 32 {
            2 => self.frame.get(usize::try_from(at - FRAME).ok()?..)?,
            3 => self.places.get(usize::try_from(at - PLACES).ok()?..)?,
            _ => return None,
        };
        let mut padded = [0; 8];
        padded.get_mut(..width)?.copy_from_slice(bytes.get(..width)?);
        Some(match width {
            1 => padded[0].into(),
            2 => u16::from_ne_bytes([padded[0], padded[1]]).into(),
            4 => u32::from_ne_bytes([padded[0], padded[1], padded[2], padded[3]]).into(),
            _ => u64::from_ne_bytes(padded),
        })
    }

    fn store(&mut self, at: u64, width: usize, value: u64) -> Option<()> {
        let bytes = match at >> 32 {
            3 => self.places.get_mut(usize::try_from(at - PLACES).ok()?..)?,
            4 => self.stack.get_mut(usize::try_from(at - STACK).ok()?..)?,
            _ => return None,
        };
        let number = match width {
            1 => value.to_ne_bytes()[..1].to_vec(),
            2 => u16::try_from(value & 0xffff).ok()?.to_ne_bytes().to_vec(),
            4 => u32::try_from(value & 0xffff_ffff).ok()?.to_ne_bytes().to_vec(),
            _ => value.to_ne_bytes().to_vec(),
        };
        bytes.get_mut(..width)?.copy_from_slice(&number);
        Some(())
    }
}

fn alu(operation: u8, to: u64, operand: u64) -> Option<u64> {
    Some(match operation {
        of if of == Alu::Add as u8 => to.wrapping_add(operand),
        of if of == Alu::And as u8 => to & operand,
        of if of == Alu::ShiftLeft as u8 => to << operand,
        of if of == Alu::ShiftRight as u8 => to >> operand,
        of if of == Alu::Move as u8 => operand,
        _ => return None,
    })
}

fn compare(operation: u8, to: u64, operand: u64) -> Option<bool> {
    Some(match operation {
        of if of == If::Always as u8 => true,
        of if of == If::Equal as u8 => to == operand,
        of if of == If::Greater as u8 => to > operand,
        of if of == If::AnyBit as u8 => to & operand != 0,
        of if of == If::NotEqual as u8 => to != operand,
        of if of == If::Less as u8 => to < operand,
        of if of == If::LessOrEqual as u8 => to <= operand,
        _ => return None,
    })
}

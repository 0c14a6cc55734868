//! An assembler of eBPF: instructions (Linux, `Documentation/bpf/standardization/instruction-set.rst`), and jumps to labels.

use alloc::vec::Vec;

/// One instruction (`struct bpf_insn`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// Operation.
    pub code: u8,
    /// Registers: source in the upper half, destination in the lower.
    pub registers: u8,
    /// Offset in memory, or jump.
    pub offset: i16,
    /// Operand.
    pub immediate: i32,
}

/// A register. R0 has results, R1 to R5 arguments that a call forgets, R10 is the end of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Map that an instruction names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Map {
    /// Array of one element for each processor: where the headers of the frame are.
    Offsets,
    /// Sockets by queue of the interface (`BPF_MAP_TYPE_XSKMAP`).
    Sockets,
}

/// Width of what is read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Size {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
    Double = 0x18,
}

/// Comparison of a jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum If {
    Always = 0x00,
    Equal = 0x10,
    Greater = 0x20,
    AnyBit = 0x40,
    NotEqual = 0x50,
    Less = 0xa0,
    LessOrEqual = 0xb0,
}

/// Arithmetic on a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Alu {
    Add = 0x00,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Move = 0xb0,
}

/// Function of the kernel (`enum bpf_func_id`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Helper {
    MapLookup = 1,
    RedirectMap = 51,
}

/// Classes of instructions, and their bits.
pub(super) const LOAD_WIDE: u8 = 0x18;
pub(super) const LOAD: u8 = 0x61;
pub(super) const STORE_IMMEDIATE: u8 = 0x62;
pub(super) const STORE: u8 = 0x63;
pub(super) const ALU_32: u8 = 0x04;
pub(super) const JUMP: u8 = 0x05;
pub(super) const JUMP_32: u8 = 0x06;
pub(super) const ALU_64: u8 = 0x07;
pub(super) const REGISTER: u8 = 0x08;
pub(super) const CALL: u8 = 0x85;
pub(super) const EXIT: u8 = 0x95;
/// `BPF_PSEUDO_MAP_FD`: the operand is the descriptor of a map.
const MAP_FD: u8 = 1;

/// A place in a program that jumps lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Label(usize);

/// A program in the making.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    instructions: Vec<Instruction>,
    maps: Vec<(usize, Map)>,
    /// Places of labels, once they are there.
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    pub(super) instructions: Vec<Instruction>,
    /// Instructions that name maps.
    pub(super) maps: Vec<(usize, Map)>,
}

impl Program {
    /// Returns the instructions, with the descriptors of the maps, as the kernel takes them.
    pub fn encode(&self, descriptor: impl Fn(Map) -> i32) -> Vec<u64> {
        let mut instructions = self.instructions.clone();
        for (at, map) in &self.maps {
            if let Some(instruction) = instructions.get_mut(*at) {
                instruction.immediate = descriptor(*map);
            }
        }
        let bytes = |of: &Instruction| {
            let ([a, b], [c, d, e, f]) = (of.offset.to_ne_bytes(), of.immediate.to_ne_bytes());
            u64::from_ne_bytes([of.code, of.registers, a, b, c, d, e, f])
        };
        instructions.iter().map(bytes).collect()
    }
}

impl Assembler {
    fn emit(&mut self, code: u8, to: Reg, from: u8, offset: i16, immediate: i32) {
        self.instructions.push(Instruction { code, registers: from << 4 | to as u8, offset, immediate });
    }

    /// A label that is not there yet.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Puts a label here.
    pub(super) fn place(&mut self, label: Label) {
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(self.instructions.len());
        }
    }

    pub(super) fn alu(&mut self, operation: Alu, to: Reg, operand: i32) {
        self.emit(ALU_64 | operation as u8, to, 0, 0, operand);
    }

    pub(super) fn alu_register(&mut self, operation: Alu, to: Reg, operand: Reg) {
        self.emit(ALU_64 | REGISTER | operation as u8, to, operand as u8, 0, 0);
    }

    /// Ands the lower 32 bits; the upper are 0 then.
    pub(super) fn and_32(&mut self, to: Reg, operand: u32) {
        self.emit(ALU_32 | Alu::And as u8, to, 0, 0, operand.cast_signed());
    }

    pub(super) fn load(&mut self, size: Size, to: Reg, from: Reg, offset: i16) {
        self.emit(LOAD | size as u8, to, from as u8, offset, 0);
    }

    pub(super) fn store(&mut self, size: Size, to: Reg, offset: i16, from: Reg) {
        self.emit(STORE | size as u8, to, from as u8, offset, 0);
    }

    pub(super) fn store_immediate(&mut self, size: Size, to: Reg, offset: i16, value: i32) {
        self.emit(STORE_IMMEDIATE | size as u8, to, 0, offset, value);
    }

    pub(super) fn load_map(&mut self, to: Reg, map: Map) {
        self.maps.push((self.instructions.len(), map));
        self.emit(LOAD_WIDE, to, MAP_FD, 0, 0);
        self.emit(0, Reg::R0, 0, 0, 0);
    }

    pub(super) fn call(&mut self, helper: Helper) {
        self.emit(CALL, Reg::R0, 0, 0, i32::from(helper as u8));
    }

    pub(super) fn exit(&mut self) {
        self.emit(EXIT, Reg::R0, 0, 0, 0);
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.emit(JUMP | If::Always as u8, Reg::R0, 0, 0, 0);
    }

    pub(super) fn jump_if(&mut self, register: Reg, comparison: If, operand: i32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.emit(JUMP | comparison as u8, register, 0, 0, operand);
    }

    pub(super) fn jump_if_register(&mut self, register: Reg, comparison: If, operand: Reg, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.emit(JUMP | REGISTER | comparison as u8, register, operand as u8, 0, 0);
    }

    /// Jumps if the lower 32 bits compare so.
    pub(super) fn jump_if_32(&mut self, register: Reg, comparison: If, operand: u32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.emit(JUMP_32 | comparison as u8, register, 0, 0, operand.cast_signed());
    }

    pub(super) const fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Returns the program; `None` if a jump is too far, or leads nowhere.
    pub(super) fn finish(mut self) -> Option<Program> {
        for (at, label) in self.jumps {
            let to = (*self.labels.get(label.0)?)?;
            // From the instruction behind the jump.
            let distance = i16::try_from(to.cast_signed() - at.cast_signed() - 1).ok()?;
            self.instructions.get_mut(at)?.offset = distance;
        }
        Some(Program { instructions: self.instructions, maps: self.maps })
    }
}

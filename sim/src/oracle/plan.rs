//! Plans: what one end of a connection is going to post, and what must come of it.
//!
//! A reliable connection carries requests out in order and once each, so everything can be predicted when
//! the plan is made: each request has bytes of its own in every buffer it touches.

use urxe_engine::rng::Rng;
use urxe_engine::{SendFlags, WcOpcode};
use urxe_wire::{ImmDt, Mtu};

use super::space::{Piece, Space, random_bytes, small};

/// Operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// CMP_SWP of the stream's own word.
    CompareSwap {
        /// Value to find.
        compare: u64,
        /// Value to put.
        swap: u64,
    },
    /// FETCH_ADD to the stream's own word.
    FetchAdd {
        /// Value to add.
        add: u64,
    },
    /// FETCH_ADD of 1 to the word that all streams to this node share.
    Count,
    /// ATOMIC WRITE of eight bytes.
    AtomicWrite,
    /// FLUSH of what the stream wrote last.
    Flush,
}

impl Verb {
    /// The opcode of its completion.
    #[must_use]
    pub const fn wc_opcode(self) -> WcOpcode {
        match self {
            Self::Send => WcOpcode::Send,
            Self::Write => WcOpcode::RdmaWrite,
            Self::Read => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompSwap,
            Self::FetchAdd { .. } | Self::Count => WcOpcode::FetchAdd,
            Self::AtomicWrite => WcOpcode::AtomicWrite,
            Self::Flush => WcOpcode::Flush,
        }
    }

    /// Whether the operation writes into the requester's buffers.
    #[must_use]
    pub const fn is_response_bearing(self) -> bool {
        !matches!(self, Self::Send | Self::Write | Self::AtomicWrite | Self::Flush)
    }
}

/// Intentional fault of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poison {
    /// An R_Key that no region has.
    RKey,
    /// One byte beyond the remote region.
    OutOfBounds,
    /// An L_Key that no region has.
    LKey,
    /// The peer's receive buffer is one byte too short.
    RecvTooShort,
    /// An L_Key of the peer's receive WQE that no region has.
    RecvLKey,
    /// An atomic at an odd address.
    Misaligned,
    /// No receive WQE is ever posted.
    NoRecv,
}

impl Poison {
    /// Mistakes that a plan may have.
    pub const ALL: [Self; 7] =
        [Self::RKey, Self::OutOfBounds, Self::LKey, Self::RecvTooShort, Self::RecvLKey, Self::Misaligned, Self::NoRecv];

    /// The kind of request that can have it.
    const fn verb(self) -> Verb {
        match self {
            Self::RKey | Self::OutOfBounds => Verb::Write,
            Self::LKey | Self::RecvTooShort | Self::RecvLKey | Self::NoRecv => Verb::Send,
            Self::Misaligned => Verb::FetchAdd { add: 1 },
        }
    }
}

/// A send request to post.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Operation.
    pub verb: Verb,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// The message; of a READ or atomic, what must come back (empty if that is not known beforehand).
    pub data: Vec<u8>,
    /// Pieces of the local buffer.
    pub local: Vec<Piece>,
    /// The data are copied when posted.
    pub inline: bool,
    /// Offset in the remote buffer.
    pub remote: usize,
    /// Fence, signaled, solicited.
    pub flags: SendFlags,
    /// Index of the peer's receive request that it consumes.
    pub recv: Option<usize>,
    /// Intentional fault.
    pub poison: Option<Poison>,
}

impl Planned {
    /// Bytes of the remote buffer.
    pub(super) const fn remote_piece(&self) -> Piece {
        Piece { offset: self.remote, len: self.data.len() }
    }

    /// Bytes of the local buffer, in all.
    pub(super) fn local_len(&self) -> usize {
        self.local.iter().map(|piece| piece.len).sum()
    }
}

/// A receive request to post.
#[derive(Clone, Debug)]
pub struct PlannedRecv {
    /// Pieces of the receive buffer.
    pub pieces: Vec<Piece>,
    /// Index of the sender's request that it is for.
    pub op: usize,
}

/// Requests that one end posts, and what the other end needs to receive them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Send requests in order.
    pub ops: Vec<Planned>,
    /// The peer's receive requests in order.
    pub recvs: Vec<PlannedRecv>,
    /// Initial bytes of the local buffer.
    pub local: Vec<u8>,
    /// Initial bytes of the peer's buffer for RDMA.
    pub remote: Vec<u8>,
    /// Initial bytes of the peer's receive buffer.
    pub recv: Vec<u8>,
    /// The values that the stream's own word, the first eight bytes of `remote`, goes through.
    pub word: Vec<u64>,
}

/// Style of plans.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Number of requests.
    pub ops: usize,
    /// The path MTU, around which lengths are chosen.
    pub mtu: Mtu,
    /// Most scatter/gather elements.
    pub max_sge: usize,
    /// Most inline data.
    pub max_inline: usize,
    /// The kinds of requests are chosen among these only.
    pub verbs: &'static [Verb],
    /// One request in the middle has this wrong with it.
    pub poison: Option<Poison>,
}

/// Every kind of request; SEND and WRITE twice because they are what is used most.
pub const ALL_VERBS: &[Verb] = &[
    Verb::Send,
    Verb::Send,
    Verb::Write,
    Verb::Write,
    Verb::Read,
    Verb::Read,
    Verb::CompareSwap { compare: 0, swap: 0 },
    Verb::FetchAdd { add: 0 },
    Verb::Count,
    Verb::AtomicWrite,
    Verb::Flush,
];

/// Lengths that matter: nothing, little, around multiples of the MTU, and now and then a lot.
fn length(rng: &mut Rng, mtu: usize) -> usize {
    match rng.below(32) {
        0..=2 => 0,
        3..=10 => 1 + small(rng, 64),
        11..=16 => (1 + small(rng, 4)) * mtu + small(rng, 3) - 1,
        17..=26 => small(rng, 3 * mtu),
        27..=30 => small(rng, 8 * mtu),
        _ if rng.below(4) == 0 => 100 * 1024 + small(rng, 1024),
        _ => small(rng, 16 * mtu),
    }
}

impl Plan {
    /// A plan from random numbers.
    #[must_use]
    pub fn random(rng: &mut Rng, style: &Style) -> Self {
        let mut draft = Draft {
            local: Space { bytes: Vec::new() },
            remote: Space { bytes: random_bytes(rng, 8) },
            recv: Space { bytes: Vec::new() },
            ops: Vec::new(),
            recvs: Vec::new(),
            word: Vec::new(),
        };
        draft.word.push(u64::from_ne_bytes(draft.remote.bytes[..8].try_into().expect("eight bytes")));
        let poisoned = style.ops / 2;
        for at in 0..style.ops {
            let poison = style.poison.filter(|_| at == poisoned);
            let verb = match poison {
                Some(poison) => poison.verb(),
                None => style.verbs[small(rng, style.verbs.len())],
            };
            draft.add(rng, style, verb, poison);
        }
        if let Some(last) = draft.ops.last_mut() {
            last.flags.signaled = true;
        }
        let Draft { local, remote, recv, ops, recvs, word } = draft;
        Self { ops, recvs, local: local.bytes, remote: remote.bytes, recv: recv.bytes, word }
    }

    /// Packets in both directions if nothing is lost and every request packet is acknowledged.
    #[must_use]
    pub fn packets(&self, mtu: Mtu) -> u64 {
        let of = |op: &Planned| 2 * u64::from(mtu.packets(u32::try_from(op.data.len()).unwrap_or(u32::MAX)));
        self.ops.iter().map(of).sum()
    }
}

struct Draft {
    local: Space,
    remote: Space,
    recv: Space,
    ops: Vec<Planned>,
    recvs: Vec<PlannedRecv>,
    word: Vec<u64>,
}

impl Draft {
    fn add(&mut self, rng: &mut Rng, style: &Style, verb: Verb, poison: Option<Poison>) {
        let flags = SendFlags { fence: rng.below(6) == 0, signaled: rng.below(3) > 0, solicited: rng.below(4) == 0 };
        let mut op = Planned {
            verb,
            imm: None,
            data: Vec::new(),
            local: Vec::new(),
            inline: false,
            remote: 0,
            flags,
            recv: None,
            poison,
        };
        match verb {
            Verb::Send | Verb::Write => self.add_data(rng, style, &mut op),
            Verb::Read => self.add_read(rng, style, &mut op),
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } | Verb::Count => self.add_atomic(rng, &mut op),
            Verb::AtomicWrite => {
                op.local = self.local.scatter(rng, 8, style.max_sge);
                op.data = op.local.iter().flat_map(|piece| self.local.bytes[piece.range()].iter().copied()).collect();
                op.inline = rng.below(2) == 0;
                op.remote = self.remote.take_aligned(rng);
            }
            Verb::Flush => op.remote = self.ops.iter().rfind(|op| op.verb == Verb::Write).map_or(0, |op| op.remote),
        }
        self.ops.push(op);
    }

    fn add_data(&mut self, rng: &mut Rng, style: &Style, op: &mut Planned) {
        let reads: Vec<usize> = (0..self.ops.len())
            .filter(|&at| self.ops[at].verb == Verb::Read && !self.ops[at].data.is_empty())
            .collect();
        if !reads.is_empty() && op.poison.is_none() && rng.below(6) == 0 {
            // What a READ brought, sent on: only the fence makes sure that it is there.
            let read = &self.ops[reads[small(rng, reads.len())]];
            (op.local, op.data, op.flags.fence) = (read.local.clone(), read.data.clone(), true);
        } else {
            let len = match op.poison {
                // An empty message breaks no rule.
                Some(_) => 1 + small(rng, 3 * style.mtu.bytes()),
                None => length(rng, style.mtu.bytes()),
            };
            op.local = self.local.scatter(rng, len, style.max_sge);
            op.data = op.local.iter().flat_map(|piece| self.local.bytes[piece.range()].iter().copied()).collect();
            op.inline = op.poison.is_none() && len <= style.max_inline && rng.below(3) == 0;
        }
        if op.poison.is_none() && rng.below(3) == 0 {
            op.imm = Some(ImmDt(random_bytes(rng, 4).try_into().expect("four bytes")));
        }
        if op.verb == Verb::Write {
            op.remote = self.remote.take(rng, op.data.len()).offset;
        }
        if op.verb == Verb::Send || op.imm.is_some() {
            op.recv = Some(self.recvs.len());
            let len = match (op.verb, op.poison) {
                (Verb::Send, Some(Poison::RecvTooShort)) => op.data.len() - 1,
                (Verb::Send, _) => op.data.len() + small(rng, 2) * small(rng, 100),
                // A WRITE with immediate takes a receive WQE, but not its buffers.
                _ => small(rng, 100),
            };
            let pieces = self.recv.scatter(rng, len, style.max_sge);
            self.recvs.push(PlannedRecv { pieces, op: self.ops.len() });
        }
    }

    fn add_read(&mut self, rng: &mut Rng, style: &Style, op: &mut Planned) {
        let writes: Vec<usize> =
            (0..self.ops.len()).filter(|&at| matches!(self.ops[at].verb, Verb::Write | Verb::AtomicWrite)).collect();
        if !writes.is_empty() && rng.below(2) == 0 {
            // What was written before must be read.
            let write = &self.ops[writes[small(rng, writes.len())]];
            (op.remote, op.data) = (write.remote, write.data.clone());
        } else {
            let len = length(rng, style.mtu.bytes());
            let piece = self.remote.take(rng, len);
            (op.remote, op.data) = (piece.offset, self.remote.bytes[piece.range()].to_vec());
        }
        op.local = self.local.scatter(rng, op.data.len(), style.max_sge);
    }

    fn add_atomic(&mut self, rng: &mut Rng, op: &mut Planned) {
        op.local = vec![self.local.take(rng, 8)];
        let word = *self.word.last().expect("there is an initial value");
        let new = match &mut op.verb {
            Verb::CompareSwap { compare, swap } => {
                *swap = rng.next_u64();
                *compare = if rng.below(2) == 0 { word } else { rng.next_u64() };
                if *compare == word { *swap } else { word }
            }
            Verb::FetchAdd { add } => {
                *add = rng.next_u64();
                word.wrapping_add(*add)
            }
            _ => return,
        };
        op.data = word.to_ne_bytes().to_vec();
        if op.poison.is_none() {
            self.word.push(new);
        }
    }
}

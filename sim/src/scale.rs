//! Many stacks: each is connected with its neighbours on a ring, and with one hub.

use std::fmt;

use urxe_engine::rng::Rng;
use urxe_engine::{
    Access, Data, PostError, QpType, Recipient, RecvWr, SendFlags, SendOp, SendWr, Sge, SgeList, WcOpcode, WcStatus,
};
use urxe_wire::Qpn;

use crate::memory::{Buffer, DEFAULT_PD};
use crate::{Connection, CqId, Fabric, NodeConfig, NodeId, QpSetup};

/// Bytes of a SEND.
const MESSAGE: u64 = 64;
/// Sends and receives of a queue pair at a time.
const DEPTH: u64 = 8;
/// Completions of a queue pair in a round: sends, an atomic, receives.
const COMPLETIONS: u64 = 2 * DEPTH + 1;

/// The first failure of a round: a request that is refused, or completions, counters or data that are not as they must be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        Self(format!("a request is refused: {error}"))
    }
}

/// Stacks and what connects them.
pub struct Scale {
    /// The network they are on.
    pub fabric: Fabric,
    stacks: Vec<Stack>,
    ends: Vec<End>,
}

/// A stack of many.
struct Stack {
    node: NodeId,
    cq: CqId,
    /// The word that others add to.
    counter: Buffer,
    /// The results of atomics on the others' words.
    result: Buffer,
    /// Ends of connections here.
    ends: u64,
}

/// A queue pair.
struct End {
    stack: usize,
    qpn: Qpn,
    /// The end at the other side.
    peer: usize,
    /// Messages sent and received: places for [`DEPTH`] of each.
    outgoing: Buffer,
    incoming: Buffer,
}

impl Scale {
    /// Fabric of `stacks` stacks, the first of them the hub, each connected with so many of those that follow on the ring.
    ///
    /// # Panics
    /// If there are less than two stacks, or no more stacks than neighbours.
    #[must_use]
    pub fn new(stacks: usize, neighbours: usize, seed: u64, config: NodeConfig) -> Self {
        assert!(stacks >= 2 && neighbours < stacks, "{stacks} stacks with {neighbours} neighbours each");
        let mut fabric = Fabric::new();
        let mut rng = Rng::new(seed);
        let count = stacks;
        let stacks = (0..count)
            .map(|at| {
                let node = fabric.add_node(NodeConfig { seed: rng.next_u64(), ..config });
                // Everybody comes to the hub, and whom the ring leads there twice.
                let most = 2 * (neighbours + 1) + if at == 0 { count } else { 0 };
                let most = usize::try_from(most as u64 * COMPLETIONS).unwrap_or(usize::MAX);
                let cq = fabric.node_mut(node).verbs().create_cq(most);
                let memory = fabric.node_mut(node).memory_mut();
                let counter = memory.register_new(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC);
                let result = memory.register_new(8, Access::LOCAL_WRITE);
                Stack { node, cq, counter, result, ends: 0 }
            })
            .collect();
        let mut scale = Self { fabric, stacks, ends: Vec::new() };
        for own in 0..count {
            for step in 1..=neighbours {
                // Two that are each other's neighbour both ways round, and those beside the hub, are connected twice.
                scale.connect(own, (own + step) % count);
            }
            if own > 0 {
                scale.connect(own, 0);
            }
        }
        scale
    }

    fn connect(&mut self, a: usize, b: usize) {
        let setups = [a, b].map(|at| {
            let cq = self.stacks[at].cq;
            QpSetup { sq_sig_all: true, ..QpSetup::new(QpType::Rc, DEFAULT_PD, cq, cq) }
        });
        let nodes = [a, b].map(|at| self.stacks[at].node);
        let qpns = self.fabric.connect_made(nodes, setups, &Connection::default());
        let first = self.ends.len();
        for (side, stack) in [a, b].into_iter().enumerate() {
            self.stacks[stack].ends += 1;
            let memory = self.fabric.node_mut(nodes[side]).memory_mut();
            let mut buffer = || memory.register_new(usize::try_from(MESSAGE * DEPTH).unwrap_or(0), Access::LOCAL_WRITE);
            let (outgoing, incoming) = (buffer(), buffer());
            self.ends.push(End { stack, qpn: qpns[side], peer: first + 1 - side, outgoing, incoming });
        }
    }

    /// Number of queue pairs.
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        self.ends.len()
    }

    /// Each queue pair sends its peer eight messages, and adds one to its stack's counter; `round` counts the calls.
    /// Returns how many messages that were.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn talk(&mut self, round: u64) -> Result<u64, Failure> {
        for at in 0..self.ends.len() {
            let End { stack, qpn, outgoing, incoming, .. } = self.ends[at];
            let Stack { node, result, .. } = self.stacks[stack];
            let flags = SendFlags { signaled: true, ..SendFlags::default() };
            for nth in 0..DEPTH {
                let recv = RecvWr { wr_id: nth, buffers: SgeList::new(&[place(&incoming, nth)]) };
                self.fabric.post_recv(node, qpn, recv)?;
            }
            for nth in 0..DEPTH {
                let from = place(&outgoing, nth);
                self.fabric.node_mut(node).memory_mut().poke(from.addr, &contents(at, round, nth));
                let data = Data::Gather(SgeList::new(&[from]));
                let wr = SendWr { wr_id: nth, op: SendOp::Send, data, flags, to: Recipient::Peer };
                self.fabric.post_send(node, qpn, wr)?;
            }
            let remote = self.stacks[self.ends[self.ends[at].peer].stack].counter.remote();
            let data = Data::Gather(SgeList::new(&[Sge { addr: result.addr, length: 8, l_key: result.key.0 }]));
            let op = SendOp::FetchAdd { remote, add: 1 };
            let wr = SendWr { wr_id: DEPTH, op, data, flags, to: Recipient::Peer };
            self.fabric.post_send(node, qpn, wr)?;
        }
        self.fabric.run();
        self.check(round)?;
        Ok(self.ends.len() as u64 * (DEPTH + 1))
    }

    fn check(&mut self, round: u64) -> Result<(), Failure> {
        for (at, Stack { node, cq, counter, ends, .. }) in self.stacks.iter().enumerate() {
            // Of sends and of receives of each queue pair.
            let mut next = std::collections::BTreeMap::<_, u64>::new();
            while let Some(cqe) = self.fabric.node_mut(*node).poll(*cq) {
                let next = next.entry((cqe.qpn, cqe.opcode == WcOpcode::Recv)).or_default();
                if cqe.status != WcStatus::Success || cqe.wr_id != *next {
                    return Err(Failure(format!("stack {at} expects request {next} to complete: {cqe:?}")));
                }
                *next += 1;
            }
            let completions: u64 = next.values().sum();
            if completions != ends * COMPLETIONS {
                return Err(Failure(format!("stack {at} has {completions} completions on {ends} queue pairs")));
            }
            let memory = self.fabric.node(*node).memory();
            let counted = memory.peek(counter.addr, 8).try_into().map(u64::from_ne_bytes);
            if counted != Ok(ends * round) || !memory.violations().is_empty() {
                return Err(Failure(format!("stack {at}: {counted:?} counted by {ends} queue pairs in round {round}")));
            }
        }
        for (at, end) in self.ends.iter().enumerate() {
            let memory = self.fabric.node(self.stacks[end.stack].node).memory();
            for nth in 0..DEPTH {
                let found = memory.peek(place(&end.incoming, nth).addr, contents(0, 0, 0).len());
                if found != contents(end.peer, round, nth) {
                    return Err(Failure(format!("queue pair {at} got {found:02x?} as message {nth} of round {round}")));
                }
            }
        }
        Ok(())
    }
}

fn place(buffer: &Buffer, nth: u64) -> Sge {
    Sge { addr: buffer.addr + nth * MESSAGE, length: u32::try_from(MESSAGE).unwrap_or(0), l_key: buffer.key.0 }
}

/// Contents of a message.
fn contents(end: usize, round: u64, nth: u64) -> Vec<u8> {
    [end as u64, round, nth].map(|word| word.wrapping_mul(0x9E37_79B9_7F4A_7C15)).map(u64::to_ne_bytes).concat()
}

//! One direction of a connection: posts a plan, and compares what comes of it with what must.

use std::collections::BTreeSet;

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::quirks::Quirk;
use urxe_engine::{
    Access, AsyncEvent, Cqe, Data, PostError, QpState, Recipient, RecvWr, Remote, SendOp, SendWr, WcOpcode, WcStatus,
};
use urxe_wire::{Feth, FlushLevel, Qpn, RKey};

use super::area::{Area, Image};
use super::complaint::{Complaint, ensure};
use super::plan::{Plan, Planned, Poison, Verb};
use super::space::Piece;
use super::write_order::WriteOrder;
use crate::NodeEvent;
use crate::memory::Store;
use crate::{Fabric, NodeId};

/// A key that no region has: index 0 is never given out.
const NO_KEY: u32 = 0x77;

/// One direction of a connection.
pub(super) struct Stream {
    pub(super) plan: Plan,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) qp: Qpn,
    pub(super) peer_qp: Qpn,
    local: Area,
    remote: Area,
    recv: Area,
    /// The word that all streams to this node count in.
    counter: Remote,
    posted: usize,
    /// All before are known to be done, or to have failed.
    done: usize,
    /// The first that did not succeed, and how.
    pub(super) error: Option<(usize, WcStatus)>,
    recv_posted: usize,
    recv_done: usize,
    pub(super) recv_error: Option<(usize, WcStatus)>,
    /// Results of atomics on the shared counter.
    pub(super) counted: BTreeSet<u64>,
    /// Receives at the poisoned request and behind are never posted.
    recv_end: usize,
    /// How often the send queue was drained.
    drains: usize,
    write_order: WriteOrder,
}

impl Stream {
    pub(super) fn new(
        fabric: &mut Fabric,
        plan: Plan,
        (from, qp): (NodeId, Qpn),
        (to, peer_qp): (NodeId, Qpn),
        counter: Remote,
        keeps: bool,
    ) -> Self {
        const REMOTE: Access = Access::from_bits(
            Access::LOCAL_WRITE.bits()
                | Access::REMOTE_WRITE.bits()
                | Access::REMOTE_READ.bits()
                | Access::REMOTE_ATOMIC.bits()
                | Access::FLUSH_GLOBAL.bits(),
        );
        let local = Area::new(fabric, from, &plan.local, Access::LOCAL_WRITE);
        let remote = Area::new(fabric, to, &plan.remote, REMOTE);
        let recv = Area::new(fabric, to, &plan.recv, Access::LOCAL_WRITE);
        let starved = plan.ops.iter().find(|op| op.poison == Some(Poison::NoRecv)).and_then(|op| op.recv);
        let recv_end = starved.unwrap_or(plan.recvs.len());
        Self {
            plan,
            from,
            to,
            qp,
            peer_qp,
            local,
            remote,
            recv,
            counter,
            posted: 0,
            done: 0,
            error: None,
            recv_posted: 0,
            recv_done: 0,
            recv_error: None,
            counted: BTreeSet::new(),
            recv_end,
            drains: 0,
            write_order: WriteOrder::new(keeps),
        }
    }

    /// Posts send requests until the queue is full.
    pub(super) fn post_sends(&mut self, fabric: &mut Fabric) -> Result<(), Complaint> {
        while let Some(op) = self.plan.ops.get(self.posted) {
            let wr = self.send_wr(op);
            match fabric.post_send(self.from, self.qp, wr) {
                Ok(()) => self.posted += 1,
                Err(PostError::QueueFull) => break,
                Err(error) => return Err(Complaint(format!("post_send of {}: {error:?}", self.posted))),
            }
        }
        Ok(())
    }

    /// Posts up to `count` receive requests.
    pub(super) fn post_recvs(&mut self, fabric: &mut Fabric, count: usize) -> Result<(), Complaint> {
        for _ in 0..count {
            if self.recv_posted >= self.recv_end {
                break;
            }
            let planned = &self.plan.recvs[self.recv_posted];
            let poisoned = self.plan.ops[planned.op].poison == Some(Poison::RecvLKey);
            let buffers = self.recv.sges(&planned.pieces, poisoned.then_some(NO_KEY));
            match fabric.post_recv(self.to, self.peer_qp, RecvWr { wr_id: self.recv_posted as u64, buffers }) {
                Ok(()) => self.recv_posted += 1,
                Err(PostError::QueueFull) => break,
                Err(error) => return Err(Complaint(format!("post_recv of {}: {error:?}", self.recv_posted))),
            }
        }
        Ok(())
    }

    /// Deregisters one of its three buffers, whoever uses it.
    pub(super) fn deregister(&self, fabric: &mut Fabric, nth: u64) {
        let area = [&self.local, &self.remote, &self.recv][usize::from(nth > 0) + usize::from(nth > 1)];
        fabric.node_mut(area.node).memory_mut().deregister(area.buffer.key);
    }

    /// Stops the send queue, to be told when nothing is outstanding.
    pub(super) fn drain(&mut self, fabric: &mut Fabric) -> Result<(), Complaint> {
        if fabric.node(self.from).qp(self.qp).state() != QpState::Rts {
            return Ok(());
        }
        let attr = QpAttr { sqd_notify: true, ..QpAttr::default() };
        self.drains += 1;
        self.modify(fabric, QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY, &attr)
    }

    /// Lets the send queue go on when it is drained.
    pub(super) fn go_on(&self, fabric: &mut Fabric) -> Result<(), Complaint> {
        let qp = fabric.node(self.from).qp(self.qp);
        if qp.state() != QpState::Sqd || qp.is_draining() {
            return Ok(());
        }
        self.modify(fabric, QpState::Rts, AttrMask::NONE, &QpAttr::default())
    }

    fn modify(&self, fabric: &mut Fabric, to: QpState, mask: AttrMask, attr: &QpAttr) -> Result<(), Complaint> {
        let modified = fabric.modify(self.from, self.qp, to, mask, attr);
        modified.map_err(|error| Complaint(format!("modify to {to:?}: {error:?}")))
    }

    /// Every drain was told of, once.
    pub(super) fn check_drains(&self, fabric: &Fabric) -> Result<(), Complaint> {
        let told = |(_, node, event): &&(_, NodeId, NodeEvent)| {
            *node == self.from && *event == NodeEvent::Async(self.qp, AsyncEvent::SqDrained)
        };
        let told = fabric.journal().iter().filter(told).count();
        ensure!(told == self.drains, "drained {} times, but told {told} times", self.drains);
        Ok(())
    }

    /// Whether receive requests are left to post.
    pub(super) const fn wants_recvs(&self) -> bool {
        self.recv_posted < self.recv_end
    }

    /// Whether everything was posted and succeeded.
    pub(super) const fn is_complete(&self) -> bool {
        self.done == self.plan.ops.len() && self.error.is_none()
    }

    fn send_wr(&self, op: &Planned) -> SendWr {
        let bad_key = (op.poison == Some(Poison::LKey)).then_some(NO_KEY);
        let data = if op.inline {
            Data::Inline(op.data.as_slice().into())
        } else {
            Data::Gather(self.local.sges(&op.local, bad_key))
        };
        let mut remote = self.remote.buffer.remote_at(op.remote as u64);
        match op.poison {
            Some(Poison::RKey) => remote.r_key = RKey(NO_KEY),
            Some(Poison::OutOfBounds) => {
                remote.addr = self.remote.buffer.addr + self.remote.buffer.length - op.data.len() as u64 + 1;
            }
            _ => {}
        }
        if op.data.is_empty() && !matches!(op.verb, Verb::Count) {
            // Without bytes no key is looked at (IBA C9-88).
            remote.r_key = RKey(NO_KEY);
        }
        let word = self.remote.buffer.remote_at(u64::from(op.poison == Some(Poison::Misaligned)));
        let op_kind = match (op.verb, op.imm) {
            (Verb::Send, None) => SendOp::Send,
            (Verb::Send, Some(imm)) => SendOp::SendWithImmediate(imm),
            (Verb::Write, None) => SendOp::Write(remote),
            (Verb::Write, Some(imm)) => SendOp::WriteWithImmediate(remote, imm),
            (Verb::Read, _) => SendOp::Read(remote),
            (Verb::CompareSwap { compare, swap }, _) => SendOp::CompareSwap { remote: word, compare, swap },
            (Verb::FetchAdd { add }, _) => SendOp::FetchAdd { remote: word, add },
            (Verb::AtomicWrite, _) => SendOp::AtomicWrite(remote),
            (Verb::Flush, _) => SendOp::Flush {
                remote: self.remote.buffer.remote_at(op.remote as u64),
                length: 8.min(u32::try_from(self.remote.initial.len() - op.remote).unwrap_or(8)),
                how: Feth { global_visibility: true, persistence: false, level: FlushLevel::Range },
            },
            (Verb::Count, _) => SendOp::FetchAdd { remote: self.counter, add: 1 },
        };
        SendWr { wr_id: self.posted as u64, op: op_kind, data, flags: op.flags, to: Recipient::Peer }
    }

    /// Checks stores of the receiving node: which bytes of WRITEs they are.
    pub(super) fn check_stores(&mut self, stores: &[Store]) -> Result<(), Complaint> {
        let area = self.remote.buffer;
        for store in stores {
            let offset = store.addr.checked_sub(area.addr).filter(|offset| *offset < area.length);
            if let Some(offset) = offset.and_then(|offset| usize::try_from(offset).ok()) {
                self.write_order.store(&self.plan.ops, offset, store.length)?;
            }
        }
        Ok(())
    }

    // --- completions ---------------------------------------------------------------------------------------

    /// Takes the completions of the receiving side, and checks them.
    pub(super) fn poll_recvs(&mut self, fabric: &mut Fabric) -> Result<(), Complaint> {
        let cq = fabric.node(self.to).recv_cq(self.peer_qp);
        while let Some(cqe) = fabric.node_mut(self.to).poll(cq) {
            self.check_recv(fabric, &cqe).map_err(|Complaint(why)| Complaint(format!("{why}: {cqe:?}")))?;
        }
        Ok(())
    }

    /// Takes the completions of the sending side, and checks them.
    pub(super) fn poll_sends(&mut self, fabric: &mut Fabric) -> Result<(), Complaint> {
        let cq = fabric.node(self.from).send_cq(self.qp);
        while let Some(cqe) = fabric.node_mut(self.from).poll(cq) {
            self.check_send(fabric, &cqe).map_err(|Complaint(why)| Complaint(format!("{why}: {cqe:?}")))?;
        }
        Ok(())
    }

    fn check_recv(&mut self, fabric: &Fabric, cqe: &Cqe) -> Result<(), Complaint> {
        let at = self.recv_done;
        ensure!(cqe.wr_id == at as u64, "receive completions out of order, {at} is due");
        ensure!(at < self.recv_posted, "a receive completed that was not posted");
        ensure!(cqe.qpn == self.peer_qp, "completion of another QP");
        self.recv_done += 1;
        if cqe.status != WcStatus::Success {
            ensure!(
                self.recv_error.is_none() || cqe.status == WcStatus::WrFlushError,
                "a second receive failed other than by being flushed"
            );
            self.recv_error.get_or_insert((at, cqe.status));
            return Ok(());
        }
        ensure!(self.recv_error.is_none(), "a receive succeeded behind one that failed");
        let planned = &self.plan.recvs[at];
        let op = &self.plan.ops[planned.op];
        ensure!(planned.op < self.posted && op.poison.is_none(), "a message arrived that was not sent");
        let opcode = if op.verb == Verb::Send { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        ensure!(cqe.opcode == opcode, "opcode is not {opcode:?}");
        ensure!(cqe.byte_len as usize == op.data.len(), "byte_len is not {}", op.data.len());
        ensure!(cqe.imm == op.imm, "immediate data are not {:?}", op.imm);
        ensure!(cqe.src_qp == self.qp, "source is not {}", self.qp);
        ensure!(cqe.solicited == op.flags.solicited, "solicited is not {}", op.flags.solicited);
        let arrived = match op.verb {
            Verb::Send => self.recv.holds(fabric, &planned.pieces, &op.data),
            _ => self.remote.holds(fabric, &[op.remote_piece()], &op.data),
        };
        ensure!(arrived, "the message's bytes are wrong");
        Ok(())
    }

    fn check_send(&mut self, fabric: &Fabric, cqe: &Cqe) -> Result<(), Complaint> {
        let at = usize::try_from(cqe.wr_id).unwrap_or(usize::MAX);
        ensure!(at >= self.done, "completed twice, or out of order: {} is due", self.done);
        ensure!(at < self.posted, "a send completed that was not posted");
        ensure!(cqe.qpn == self.qp, "completion of another QP");
        for skipped in self.done..at {
            ensure!(!self.plan.ops[skipped].flags.signaled, "no completion of {skipped}");
            ensure!(self.error.is_none(), "{skipped} was not flushed");
        }
        let op = &self.plan.ops[at];
        let first = self.done;
        self.done = at + 1;
        if cqe.status == WcStatus::Success {
            ensure!(self.error.is_none(), "success behind a failure");
            ensure!(op.flags.signaled, "success of an unsignaled request");
            ensure!(cqe.opcode == op.verb.wc_opcode(), "opcode is not {:?}", op.verb.wc_opcode());
            let byte_len = if op.verb.is_response_bearing() { op.local_len() } else { 0 };
            ensure!(cqe.byte_len as usize == byte_len, "byte_len is not {byte_len}");
        } else if self.error.is_none() {
            self.error = Some((at, cqe.status));
        } else {
            ensure!(cqe.status == WcStatus::WrFlushError, "a second request failed other than by being flushed");
        }
        let succeeded = if cqe.status == WcStatus::Success { first..at + 1 } else { first..at };
        for at in succeeded {
            self.check_done(fabric, at)?;
        }
        Ok(())
    }

    /// Notes that a request has been carried out.
    fn check_done(&mut self, fabric: &Fabric, at: usize) -> Result<(), Complaint> {
        let op = &self.plan.ops[at];
        ensure!(op.poison.is_none(), "{at} succeeded with {:?}", op.poison);
        match op.verb {
            Verb::Send | Verb::Flush => {}
            Verb::Write | Verb::AtomicWrite => {
                ensure!(self.remote.holds(fabric, &[op.remote_piece()], &op.data), "{at}: not written");
            }
            Verb::Read | Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => {
                ensure!(self.local.holds(fabric, &op.local, &op.data), "{at}: the response's bytes are wrong");
            }
            Verb::Count => {
                let addr = self.local.buffer.addr + op.local[0].offset as u64;
                let bytes = fabric.node(self.from).memory().peek(addr, 8);
                let count = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
                ensure!(self.counted.insert(count), "{at}: counted to {count} twice");
            }
        }
        let quirks = fabric.node(self.to).config().quirks;
        let may_be_late = quirks.is_some_and(|quirks| quirks.shows(Quirk::LateCompletions));
        if let Some(recv) = op.recv.filter(|_| !may_be_late) {
            ensure!(recv < self.recv_done, "{at} is acknowledged, but its receive has not completed");
        }
        Ok(())
    }

    /// Both QPs are in ERR: every request posted has completed, and memory is what it must be.
    pub(super) fn check_end(&self, fabric: &Fabric) -> Result<(), Complaint> {
        for at in self.done..self.posted {
            ensure!(!self.plan.ops[at].flags.signaled, "{at} never completed");
        }
        ensure!(self.recv_done == self.recv_posted, "receive {} never completed", self.recv_done);

        let sure = self.error.map_or(self.posted, |(at, _)| at);
        let received = self.recv_error.map_or(self.recv_done, |(at, _)| at);
        let (mut local, mut remote, mut recv) =
            (Image::of(&self.local), Image::of(&self.remote), Image::of(&self.recv));
        let mut words = 0..1;
        for (at, op) in self.plan.ops.iter().enumerate().take(self.posted) {
            let certain = at < sure;
            match op.verb {
                Verb::Read => local.put(&op.local, &op.data, certain),
                // What another stream counted is not known beforehand; it was checked when it completed.
                Verb::Count => {
                    let addr = self.local.buffer.addr + op.local[0].offset as u64;
                    local.put(&op.local, &fabric.node(self.from).memory().peek(addr, 8), certain);
                }
                Verb::CompareSwap { .. } | Verb::FetchAdd { .. } if op.poison.is_none() => {
                    local.put(&op.local, &op.data, certain);
                    words.end += 1;
                    words.start += usize::from(certain);
                }
                Verb::Write | Verb::AtomicWrite if op.poison.is_none() => {
                    remote.put(&[op.remote_piece()], &op.data, certain);
                }
                Verb::Send
                | Verb::Write
                | Verb::AtomicWrite
                | Verb::Flush
                | Verb::CompareSwap { .. }
                | Verb::FetchAdd { .. } => {}
            }
            if let Some(at) = op.recv
                && op.verb == Verb::Send
                && at < self.recv_posted
            {
                let pieces = &self.plan.recvs[at].pieces;
                // A message that is too long may fill the buffers before that is noticed.
                let room: usize = pieces.iter().map(|piece| piece.len).sum();
                recv.put(pieces, &op.data[..op.data.len().min(room)], at < received);
            }
        }
        let word = fabric.node(self.to).memory().peek(self.remote.buffer.addr, 8);
        let value = u64::from_ne_bytes(word.as_slice().try_into().expect("eight bytes"));
        ensure!(self.plan.word[words].contains(&value), "the word is {value:#x}: an atomic was lost or done twice");
        remote.put(&[Piece { offset: 0, len: 8 }], &word, true);

        local.compare("local buffer", &self.local, fabric)?;
        remote.compare("remote buffer", &self.remote, fabric)?;
        recv.compare("receive buffer", &self.recv, fabric)
    }

    /// Fewest and most times that it may have counted.
    pub(super) fn counts(&self) -> (u64, u64) {
        let sure = self.error.map_or(self.posted, |(at, _)| at);
        let count = |ops: &[Planned]| ops.iter().filter(|op| op.verb == Verb::Count).count() as u64;
        (count(&self.plan.ops[..sure]), count(&self.plan.ops[..self.posted]))
    }
}

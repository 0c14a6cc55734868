//! A process that has an SRQ, and does what it is told.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::{ALL_ACCESS, Mr, pattern};
use urxe_tests::verbs::{Op, Pd, Qp, RecvWr, Remote, SendWr, is_readable};

use crate::part::Part;

/// A process that has an SRQ, and does what it is told.
pub(crate) struct Owner {
    pub(crate) child: Child,
    pub(crate) srq: u32,
    pub(crate) memory: Remote,
    /// Memory of a domain that the SRQ is not in.
    pub(crate) stranger: Remote,
}

/// Commands to an owner, with three numbers; it answers with one, or as `NEXT` says.
pub(crate) const POST: u64 = 1;
pub(crate) const NEXT: u64 = 2;
pub(crate) const FILL: u64 = 3;
pub(crate) const HOLDS: u64 = 4;
pub(crate) const WORD: u64 = 5;
pub(crate) const ARM: u64 = 6;
pub(crate) const EVENT: u64 = 7;
pub(crate) const QUIET: u64 = 8;
pub(crate) const LIMIT: u64 = 9;
pub(crate) const LIMIT_EVENT: u64 = 10;
pub(crate) const DESTROY: u64 = 11;
pub(crate) const OVERRUN: u64 = 12;
pub(crate) const END: u64 = 13;

/// Message that has arrived at an owner.
#[derive(Debug, PartialEq)]
pub(crate) struct Arrived {
    pub(crate) wr_id: u64,
    pub(crate) status: u64,
    pub(crate) byte_len: u64,
    pub(crate) qp_num: u64,
    pub(crate) imm: u64,
    pub(crate) opcode: u64,
}

pub(crate) fn own(parent: &mut Parent, file: &str) -> Result<()> {
    let part = Part::of(file)?;
    let srq = part.srq()?;
    let other_pd = Pd::new(&part.context)?;
    let stranger = Mr::alloc(&other_pd, 4096, ALL_ACCESS)?;
    let (mine, other) = (part.mr.at(0), stranger.at(0));
    parent.send(&[srq.number()?.into(), mine.addr, mine.rkey.into(), other.addr, other.rkey.into()])?;
    loop {
        let [told, a, b, c] = parent.receive()?;
        let (at, length) = (usize::try_from(a)?, usize::try_from(b)?);
        let mut answer = 0;
        match told {
            // In two pieces.
            POST => {
                let half = length / 2;
                let pieces = [part.mr.sge(at, half), part.mr.sge(at + half, length - half)];
                srq.post_recv(&RecvWr::new(c, &pieces))?;
            }
            NEXT => {
                let wc = part.cq.next()?;
                let imm = if wc.flags & v::IBV_WC_WITH_IMM != 0 { wc.imm.into() } else { u64::MAX };
                let (status, opcode) = (wc.status.0.into(), wc.opcode.into());
                parent.send(&[wc.wr_id, status, wc.byte_len.into(), wc.qp_num.into(), imm, opcode])?;
                continue;
            }
            FILL => part.mr.pages().write(at, &pattern(c, length)),
            HOLDS => answer = u64::from(part.mr.pages().read(at, length) == pattern(c, length)),
            WORD => answer = part.mr.pages().read_u64(at),
            ARM => part.cq.arm(a == 1)?,
            EVENT => {
                ensure!(part.channel.event()? == part.cq.address());
                part.cq.acknowledge_events(1);
            }
            QUIET => {
                ensure!(!is_readable(part.channel.fd(), Duration::from_millis(20)), "an event of the channel");
                ensure!(part.cq.poll(1)?.is_empty(), "a completion");
            }
            LIMIT => srq.modify(None, Some(u32::try_from(a)?))?,
            LIMIT_EVENT => drop(part.context.expect_event(v::IBV_EVENT_SRQ_LIMIT_REACHED, srq.address())?),
            DESTROY => srq.destroy()?,
            OVERRUN => drop(part.context.expect_event(v::IBV_EVENT_CQ_ERR, part.cq.address())?),
            END => return Ok(()),
            _ => bail!("told {told}"),
        }
        parent.send(&[answer])?;
    }
}

impl Owner {
    pub(crate) fn of(file: &'static str) -> Result<Self> {
        Self::starting(move |parent| own(parent, file))
    }

    pub(crate) fn starting(body: impl FnOnce(&mut Parent) -> Result<()>) -> Result<Self> {
        let mut child = Child::fork(body)?;
        let [srq, addr, rkey, other_addr, other_rkey] = child.receive()?;
        let remote = |addr, rkey| -> Result<Remote> { Ok(Remote { addr, rkey: u32::try_from(rkey)? }) };
        let (memory, stranger) = (remote(addr, rkey)?, remote(other_addr, other_rkey)?);
        Ok(Self { child, srq: u32::try_from(srq)?, memory, stranger })
    }

    pub(crate) fn at(&self, offset: u64) -> Remote {
        Remote { addr: self.memory.addr + offset, ..self.memory }
    }

    pub(crate) fn tell(&mut self, what: u64, a: u64, b: u64, c: u64) -> Result<u64> {
        self.child.send(&[what, a, b, c])?;
        let [answer] = self.child.receive()?;
        Ok(answer)
    }

    pub(crate) fn post(&mut self, at: u64, length: usize, wr_id: u64) -> Result<()> {
        self.tell(POST, at, length as u64, wr_id).map(drop)
    }

    pub(crate) fn next(&mut self) -> Result<Arrived> {
        self.child.send(&[NEXT, 0, 0, 0])?;
        let [wr_id, status, byte_len, qp_num, imm, opcode] = self.child.receive()?;
        Ok(Arrived { wr_id, status, byte_len, qp_num, imm, opcode })
    }

    pub(crate) fn holds(&mut self, at: u64, length: usize, seed: u64) -> Result<bool> {
        Ok(self.tell(HOLDS, at, length as u64, seed)? == 1)
    }

    pub(crate) fn send(&self, part: &Part, offset: usize, length: usize) -> SendWr {
        SendWr::new(Op::Send, &[part.mr.sge(offset, length)]).to_srq(self.srq)
    }

    pub(crate) fn end(mut self) -> Result<()> {
        self.child.send(&[END, 0, 0, 0])?;
        self.child.finish()
    }
}

pub(crate) fn received(target: &Qp, wr_id: u64, length: usize, imm: Option<u32>) -> Arrived {
    let imm = imm.map_or(u64::MAX, u64::from);
    let opcode = v::IBV_WC_RECV.into();
    Arrived { wr_id, status: 0, byte_len: length as u64, qp_num: target.number().into(), imm, opcode }
}

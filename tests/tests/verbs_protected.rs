//! Memory that the application protects after it was registered: a card, which has the pages pinned, reaches it all the same.

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, pattern};
use urxe_tests::verbs::{Context, End, Mr, Op, Options, Pair, RecvWr, Remote, SendWr, Status};
use urxe_tests::{in_world, in_world_over_udp};

/// A message of several packets.
const LEN: usize = PAGE;
const OPEN: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
const PROTECTIONS: [libc::c_int; 2] = [libc::PROT_READ, libc::PROT_NONE];

/// Bytes at the near end before each request.
fn near_before() -> Vec<u8> {
    pattern(3, LEN)
}

/// Bytes at the far end before each request.
fn far_before() -> Vec<u8> {
    pattern(4, LEN)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Send,
    FetchAdd,
    CmpSwp,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Write, Self::Read, Self::Send, Self::FetchAdd, Self::CmpSwp];

    /// The word that an atomic finds.
    fn found() -> [u8; 8] {
        std::array::from_fn(|at| far_before()[at])
    }

    /// The word that an atomic leaves.
    fn left(self) -> [u8; 8] {
        let swap = 9_u64;
        let sum = u64::from_ne_bytes(Self::found()).wrapping_add(1);
        if self == Self::CmpSwp { swap.to_ne_bytes() } else { sum.to_ne_bytes() }
    }

    fn request(self, local: &Mr, remote: Remote) -> SendWr {
        let compare = u64::from_ne_bytes(Self::found());
        let (op, len) = match self {
            Self::Write => (Op::Write(remote), LEN),
            Self::Read => (Op::Read(remote), LEN),
            Self::Send => (Op::Send, LEN),
            Self::FetchAdd => (Op::FetchAdd { remote, add: 1 }, 8),
            Self::CmpSwp => (Op::CmpSwp { remote, compare, swap: u64::from_ne_bytes(self.left()) }, 8),
        };
        SendWr::new(op, &[local.sge(0, len)])
    }

    /// Bytes at the near end after the request.
    fn near_after(self) -> Vec<u8> {
        match self {
            Self::Write | Self::Send => near_before(),
            Self::Read => far_before(),
            Self::FetchAdd | Self::CmpSwp => [&Self::found(), &near_before()[8..]].concat(),
        }
    }

    /// Bytes at the far end after the request.
    fn far_after(self) -> Vec<u8> {
        match self {
            Self::Write | Self::Send => near_before(),
            Self::Read => far_before(),
            Self::FetchAdd | Self::CmpSwp => [&self.left(), &far_before()[8..]].concat(),
        }
    }
}

/// Fills the far end's memory, offers it as a receive where the request wants one, and protects it.
fn prepare(far: &End, memory: &Mr, kind: Kind, protection: libc::c_int) -> Result<()> {
    memory.pages().write(0, &far_before());
    if kind == Kind::Send {
        far.qp.post_recv(&RecvWr::new(0, &[memory.sge(0, LEN)]))?;
    }
    memory.pages().protect(protection);
    Ok(())
}

/// Looks at what a request has left at the far end.
fn check(far: &End, memory: &Mr, kind: Kind, protection: libc::c_int) -> Result<()> {
    memory.pages().protect(OPEN);
    if kind == Kind::Send {
        let wc = far.recv_cq.next()?;
        ensure!(wc.status == Status::SUCCESS, "received: {wc:?}, protection {protection}");
    }
    ensure!(memory.pages().read(0, LEN) == kind.far_after(), "far end: {kind:?}, protection {protection}");
    Ok(())
}

/// Makes a request from and to protected memory, and looks at what it has left at the near end.
fn request(near: &End, local: &Mr, remote: Remote, kind: Kind, protection: libc::c_int) -> Result<()> {
    local.pages().write(0, &near_before());
    local.pages().protect(protection);
    let wc = near.complete(&kind.request(local, remote))?;
    local.pages().protect(OPEN);
    ensure!(wc.status == Status::SUCCESS, "{kind:?}: {wc:?}, protection {protection}");
    ensure!(local.pages().read(0, LEN) == kind.near_after(), "near end: {kind:?}, protection {protection}");
    Ok(())
}

fn in_one_process(options: &Options) -> Result<()> {
    let Pair { near, far } = &Pair::new(options)?;
    let (local, remote) = (near.region(LEN)?, far.region(LEN)?);
    for protection in PROTECTIONS {
        for kind in Kind::ALL {
            prepare(far, &remote, kind, protection)?;
            request(near, &local, remote.at(0), kind, protection)?;
            check(far, &remote, kind, protection)?;
        }
    }
    // As a card that takes pages from the page tables.
    let on_demand = Mr::alloc(&far.pd, LEN, ALL_ACCESS | v::IBV_ACCESS_ON_DEMAND)?;
    on_demand.pages().protect(libc::PROT_READ);
    let wc = near.complete(&SendWr::new(Op::Write(on_demand.at(0)), &[local.sge(0, LEN)]))?;
    ensure!(wc.status == Status::REM_OP_ERR, "{wc:?}");
    Ok(())
}

/// The process at the far end.
fn far_end(parent: &mut Parent, options: &Options) -> Result<()> {
    let end = End::new(&Context::open()?, options)?;
    let memory = end.region(LEN)?;
    let at = memory.at(0);
    parent.send(&[u64::from(end.qp.number()), at.addr, u64::from(at.rkey)])?;
    let [number] = parent.receive()?;
    end.connect(u32::try_from(number)?, end.gid(options)?, options)?;
    for protection in PROTECTIONS {
        for kind in Kind::ALL {
            prepare(&end, &memory, kind, protection)?;
            parent.send(&[0])?;
            parent.receive::<1>()?;
            check(&end, &memory, kind, protection)?;
        }
    }
    Ok(())
}

fn between_two(options: &Options) -> Result<()> {
    let mut far = Child::fork(|parent| far_end(parent, options))?;
    let near = End::new(&Context::open()?, options)?;
    let local = near.region(LEN)?;
    let [number, addr, rkey] = far.receive()?;
    near.connect(u32::try_from(number)?, near.gid(options)?, options)?;
    far.send(&[u64::from(near.qp.number())])?;
    let remote = Remote { addr, rkey: u32::try_from(rkey)? };
    for protection in PROTECTIONS {
        for kind in Kind::ALL {
            far.receive::<1>()?;
            request(&near, &local, remote, kind, protection)?;
            far.send(&[0])?;
        }
    }
    far.finish()
}

//= spec/memory.md#mem-015
//= type=test
//# Memory that was protected while registered MUST be accessed all the same, unless it was registered on demand.
#[test]
fn memory_that_is_protected() {
    in_world(|| in_one_process(&Options::default()));
}

#[test]
fn memory_that_is_protected_over_udp() {
    in_world_over_udp(|| in_one_process(&Options::default()));
}

#[test]
fn memory_that_is_protected_between_two_processes() {
    in_world(|| between_two(&Options::default()));
}

#[test]
fn memory_that_is_protected_between_two_processes_over_udp() {
    in_world_over_udp(|| between_two(&Options::default()));
}

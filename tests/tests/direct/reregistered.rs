//! `ibv_rereg_mr(3)`: other memory, rights and protection domains under the same key, while a peer knows the region.

use anyhow::{Result, ensure};
use urxe_ffi::functions as f;
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, Pages, pattern};
use urxe_tests::verbs::{Mr, Op, Options, Pair, Pd, Remote, SendWr, Status};

use super::memory::is_direct;
use super::{counter, in_direct_world, succeeds};

/// Part of a region that becomes another.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Memory(&'a Pages),
    /// The first bytes of memory, of this number.
    Bytes(&'a Pages, usize),
    Rights(u32),
    Domain(&'a Pd),
}

/// Registers `memory` anew, under its key.
pub(super) fn reregister(memory: &Mr, part: Part<'_>) -> Result<()> {
    let (no_domain, nowhere) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (flag, domain, address, length, rights) = match part {
        Part::Memory(pages) => return reregister(memory, Part::Bytes(pages, pages.size())),
        Part::Bytes(pages, length) => {
            let address = std::ptr::with_exposed_provenance_mut(usize::try_from(pages.addr())?);
            (v::IBV_REREG_MR_CHANGE_TRANSLATION, no_domain, address, length, 0)
        }
        Part::Rights(rights) => (v::IBV_REREG_MR_CHANGE_ACCESS, no_domain, nowhere, 0, rights),
        Part::Domain(domain) => (v::IBV_REREG_MR_CHANGE_PD, domain.raw(), nowhere, 0, 0),
    };
    let (flag, rights) = (i32::try_from(flag)?, i32::try_from(rights)?);
    // SAFETY: a live region, and pages or a domain that live as long.
    let returned = unsafe { f::ibv_rereg_mr(memory.raw(), flag, domain, address, length, rights) };
    ensure!(returned == 0, "rereg_mr: {returned}");
    Ok(())
}

/// A WRITE of eight bytes that the responder refuses.
fn refuses_a_write(pair: &Pair, local: &Mr, at: Remote) -> Result<()> {
    let wc = pair.near.complete(&SendWr::new(Op::Write(at), &[local.sge(0, 8)]))?;
    ensure!(wc.status == Status::REM_ACCESS_ERR, "{wc:?}");
    Ok(())
}

/// Other memory: it is reached without packets, and the memory of before is not reached.
#[test]
fn other_memory() {
    in_direct_world(|| {
        let pair = Pair::new(&Options { retry_cnt: 1, ..Options::default() })?;
        let (first, second) = (Pages::new(PAGE), Pages::new(PAGE));
        let memory = Mr::of(&pair.far.pd, &first, 0, PAGE, ALL_ACCESS)?;
        ensure!(is_direct(&pair, &memory)?);
        let local = pair.near.region(PAGE)?;
        reregister(&memory, Part::Memory(&second))?;
        local.pages().write(0, &pattern(3, PAGE));
        let at = Remote { addr: second.addr(), rkey: memory.rkey() };
        let before = counter("direct_requests")?;
        succeeds(&pair.near, Op::Write(at), &[local.sge(0, PAGE)])?;
        ensure!(counter("direct_requests")? > before, "the new memory is not direct");
        ensure!(second.read(0, PAGE) == pattern(3, PAGE) && first.read(0, PAGE) == vec![0; PAGE]);
        refuses_a_write(&pair, &local, memory.at(0))
    });
}

/// A region that peers may only read from now on: the next WRITE fails, and READs go on without packets.
#[test]
fn remote_writes_forbidden() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let (local, memory) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        ensure!(is_direct(&pair, &memory)?);
        local.pages().write(0, &77_u64.to_ne_bytes());
        let before = counter("direct_requests")?;
        succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, 8)])?;
        ensure!(counter("direct_requests")? > before, "the WRITE before it is not direct");
        reregister(&memory, Part::Rights(v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_READ))?;
        ensure!(is_direct(&pair, &memory)?, "READs are allowed as before");
        local.pages().write(0, &78_u64.to_ne_bytes());
        refuses_a_write(&pair, &local, memory.at(0))?;
        ensure!(memory.pages().read_u64(0) == 77, "written all the same");
        Ok(())
    });
}

/// A region of another protection domain from now on: the next WRITE by a queue pair of the domain before fails, and
/// those of the new domain reach it without packets.
#[test]
fn another_domain() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        // Each end of a pair has a domain of its own.
        let other = Pair::on(&pair.far.context, &Options::default())?;
        let (local, memory) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        ensure!(is_direct(&pair, &memory)?);
        memory.pages().write(0, &77_u64.to_ne_bytes());
        local.pages().write(0, &78_u64.to_ne_bytes());
        reregister(&memory, Part::Domain(&other.far.pd))?;
        refuses_a_write(&pair, &local, memory.at(0))?;
        ensure!(memory.pages().read_u64(0) == 77, "written all the same");
        ensure!(is_direct(&other, &memory)?, "its own domain does not reach it");
        // It goes before its domain does.
        memory.dereg()?;
        Ok(())
    });
}

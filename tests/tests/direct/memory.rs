//! Registered memory of all kinds, and its fates, while peers write to it themselves.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, Pages, pattern};
use urxe_tests::verbs::window::part;
use urxe_tests::verbs::{Mr, Op, Options, Pair, Pd, Remote, SendWr, Status, Window};

use super::{counter, in_direct_world, succeeds};

/// Writes until it is direct; else an error.
pub(crate) fn is_direct(pair: &Pair, memory: &Mr) -> Result<bool> {
    let local = pair.near.region(PAGE)?;
    for _ in 0..100 {
        succeeds(&pair.near, Op::Read(memory.at(0)), &[local.sge(0, 8)])?;
    }
    let before = counter("direct_requests")?;
    for _ in 0..10 {
        succeeds(&pair.near, Op::Read(memory.at(0)), &[local.sge(0, 8)])?;
    }
    match counter("direct_requests")? - before {
        0 => Ok(false),
        10 => Ok(true),
        some => anyhow::bail!("{some} of 10 are direct"),
    }
}

/// Memory of any kind takes WRITEs; what cannot be shared goes by packets.
#[test]
fn kinds_of_memory() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let (file, _kept) = Pages::of_file(4 * PAGE);
        let mut on_stack = [0_u8; 4 * PAGE];
        let stack = (on_stack.as_mut_ptr() as u64).next_multiple_of(PAGE as u64);
        let private = Pages::new(4 * PAGE);
        let kinds = [
            ("pages", Mr::of(&pair.far.pd, &private, 0, 4 * PAGE, ALL_ACCESS)?, Some(true)),
            ("a file in memory", Mr::of(&pair.far.pd, &file, 0, 4 * PAGE, ALL_ACCESS)?, Some(false)),
            ("the stack", Mr::of_address(&pair.far.pd, stack, 2 * PAGE, ALL_ACCESS)?, Some(false)),
            ("on demand", Mr::alloc(&pair.far.pd, PAGE, ALL_ACCESS | v::IBV_ACCESS_ON_DEMAND)?, Some(false)),
            // With the right to hold up system calls, whole pages are shared for it.
            ("a part of a page", Mr::alloc(&pair.far.pd, 100, ALL_ACCESS)?, None),
        ];
        let local = pair.near.region(PAGE)?;
        for (nth, (what, memory, direct)) in kinds.iter().enumerate() {
            let found = is_direct(&pair, memory)?;
            ensure!(direct.is_none_or(|direct| direct == found), "{what}: direct: {found}");
            let bytes = pattern(nth as u64 + 1, 90);
            local.pages().write(0, &bytes);
            succeeds(&pair.near, Op::Write(memory.at(5)), &[local.sge(0, 90)])?;
            local.pages().write(0, &[0; 90]);
            succeeds(&pair.near, Op::Read(memory.at(5)), &[local.sge(0, 90)])?;
            ensure!(local.pages().read(0, 90) == bytes, "{what}");
        }
        ensure!(private.read(5, 90) == pattern(1, 90) && file.read(5, 90) == pattern(2, 90));
        Ok(())
    });
}

/// Bytes go there and back by packets.
fn goes_by_packets(pair: &Pair, at: Remote) -> Result<()> {
    let local = pair.near.region(PAGE)?;
    let before = counter("direct_requests")?;
    for round in 1..50 {
        let bytes = pattern(round, 90);
        local.pages().write(0, &bytes);
        succeeds(&pair.near, Op::Write(at), &[local.sge(0, 90)])?;
        local.pages().write(0, &[0; 90]);
        succeeds(&pair.near, Op::Read(at), &[local.sge(0, 90)])?;
        ensure!(local.pages().read(0, 90) == bytes);
    }
    ensure!(counter("direct_requests")? == before, "{} are direct", counter("direct_requests")? - before);
    Ok(())
}

/// A region of all memory (`IBV_ACCESS_ON_DEMAND` from 0 on) goes by packets, also to pages that another registration shares.
#[test]
fn the_region_of_all_memory() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let memory = pair.far.region(PAGE)?;
        ensure!(is_direct(&pair, &memory)?);
        let all = Mr::of_address(&pair.far.pd, 0, usize::MAX, ALL_ACCESS | v::IBV_ACCESS_ON_DEMAND)?;
        let alone = Pages::new(PAGE);
        for pages in [memory.pages(), &alone] {
            goes_by_packets(&pair, Remote { addr: pages.addr(), rkey: all.rkey() })?;
            ensure!(pages.read(0, 90) == pattern(49, 90));
        }
        all.dereg()?;
        ensure!(is_direct(&pair, &memory)?);
        Ok(())
    });
}

const HUGE_PAGE: usize = 2 << 20;

/// Pages that the kernel makes huge by itself are shared as small ones are.
#[test]
fn transparent_huge_pages() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let pages = Pages::new(3 * HUGE_PAGE);
        let start = usize::try_from(pages.addr().next_multiple_of(HUGE_PAGE as u64) - pages.addr())?;
        let huge = std::ptr::with_exposed_provenance_mut(usize::try_from(pages.addr())? + start);
        // A kernel that has none refuses; then these are small pages.
        // SAFETY: within the mapping, and its bytes stay.
        unsafe { libc::madvise(huge, 2 * HUGE_PAGE, libc::MADV_HUGEPAGE) };
        let bytes = pattern(1, 3 * HUGE_PAGE);
        pages.write(0, &bytes);
        // Its end is in the middle of a huge page.
        let memory = Mr::of(&pair.far.pd, &pages, start, HUGE_PAGE + 3 * PAGE, ALL_ACCESS)?;
        ensure!(is_direct(&pair, &memory)?);
        ensure!(pages.read(0, 3 * HUGE_PAGE) == bytes, "sharing has changed them");
        let local = pair.near.region(2 * PAGE)?;
        local.pages().write(0, &pattern(2, 2 * PAGE));
        let at = HUGE_PAGE + PAGE;
        succeeds(&pair.near, Op::Write(memory.at(at)), &[local.sge(0, 2 * PAGE)])?;
        let bytes = [&bytes[..start + at], &pattern(2, 2 * PAGE), &bytes[start + at + 2 * PAGE..]].concat();
        ensure!(pages.read(0, 3 * HUGE_PAGE) == bytes);
        memory.dereg()?;
        ensure!(pages.read(0, 3 * HUGE_PAGE) == bytes, "they are private again, and others");
        Ok(())
    });
}

/// Huge pages that are reserved for a program (`MAP_HUGETLB`) go by packets.
#[test]
fn reserved_huge_pages() {
    in_direct_world(|| {
        let map = |more| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB | more;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: somewhere new.
            let address = unsafe { libc::mmap(std::ptr::null_mut(), HUGE_PAGE, protection, flags, -1, 0) };
            (address != libc::MAP_FAILED).then_some(address)
        };
        let pair = Pair::new(&Options::default())?;
        ensure!(is_direct(&pair, &pair.far.region(PAGE)?)?);
        // On a machine that has reserved none, the mapping is there and its pages are not.
        let reserved = map(0);
        let Some(address) = reserved.or_else(|| map(libc::MAP_NORESERVE)) else {
            eprintln!("no huge pages of 2 MiB: {}", std::io::Error::last_os_error());
            return Ok(());
        };
        let memory = Mr::of_address(&pair.far.pd, address as u64, HUGE_PAGE, ALL_ACCESS)?;
        if reserved.is_some() {
            goes_by_packets(&pair, memory.at(HUGE_PAGE - 90))?;
        } else {
            let (before, local) = (counter("direct_requests")?, pair.near.region(PAGE)?);
            let wc = pair.near.complete(&SendWr::new(Op::Read(memory.at(0)), &[local.sge(0, 8)]))?;
            ensure!(wc.status == Status::REM_OP_ERR, "{wc:?}");
            ensure!(counter("direct_requests")? == before);
        }
        memory.dereg()?;
        // SAFETY: the mapping of above, which nobody uses any more.
        ensure!(unsafe { libc::munmap(address, HUGE_PAGE) } == 0);
        Ok(())
    });
}

/// Two registrations of one range, and of a part of it, are each other's memory; the last to go gives the pages back.
#[test]
fn overlapping_registrations() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let pages = Pages::new(8 * PAGE);
        pages.write(0, &pattern(1, 8 * PAGE));
        let whole = Mr::of(&pair.far.pd, &pages, 0, 8 * PAGE, ALL_ACCESS)?;
        let part = Mr::of(&pair.far.pd, &pages, 2 * PAGE, PAGE, ALL_ACCESS)?;
        let tail = Mr::of(&pair.far.pd, &pages, 4 * PAGE, 4 * PAGE, ALL_ACCESS)?;
        ensure!(is_direct(&pair, &whole)? && is_direct(&pair, &part)? && is_direct(&pair, &tail)?);
        ensure!(pages.read(0, 8 * PAGE) == pattern(1, 8 * PAGE));
        let local = pair.near.region(PAGE)?;
        local.pages().write(0, &pattern(2, PAGE));
        succeeds(&pair.near, Op::Write(part.at(0)), &[local.sge(0, PAGE)])?;
        whole.dereg()?;
        ensure!(is_direct(&pair, &part)?);
        succeeds(&pair.near, Op::Write(tail.at(0)), &[local.sge(0, PAGE)])?;
        part.dereg()?;
        tail.dereg()?;
        for page in [2, 4] {
            ensure!(pages.read(page * PAGE, PAGE) == pattern(2, PAGE), "page {page}");
        }
        ensure!(pages.read(0, 2 * PAGE) == pattern(1, 8 * PAGE)[..2 * PAGE]);
        Ok(())
    });
}

/// `ibv_dereg_mr(3)` while a peer writes: when it returns, nothing changes any more, and the peer's next request is refused.
#[test]
fn deregistration_under_traffic() {
    in_direct_world(|| {
        for _ in 0..20 {
            let pair = Pair::new(&Options::default())?;
            let pages = Pages::new(64 * PAGE);
            let memory = Mr::of(&pair.far.pd, &pages, 0, 64 * PAGE, ALL_ACCESS)?;
            let local = pair.near.region(64 * PAGE)?;
            ensure!(is_direct(&pair, &memory)?);
            let at = memory.at(0);
            let (is_gone, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| -> Result<()> {
                let writer = scope.spawn(|| -> Result<()> {
                    for round in 1.. {
                        local.pages().write(0, &pattern(round, 64 * PAGE));
                        // It may succeed only if it began before the memory was gone.
                        let late = is_gone.load(Ordering::SeqCst);
                        let wc = pair.near.complete(&SendWr::new(Op::Write(at), &[local.sge(0, 64 * PAGE)]))?;
                        has_begun.store(true, Ordering::SeqCst);
                        if wc.status != Status::SUCCESS {
                            ensure!(wc.status == Status::REM_ACCESS_ERR, "{wc:?}");
                            return Ok(());
                        }
                        ensure!(!late, "written after deregistration");
                    }
                    Ok(())
                });
                while !has_begun.load(Ordering::SeqCst) && !writer.is_finished() {
                    std::thread::yield_now();
                }
                memory.dereg()?;
                is_gone.store(true, Ordering::SeqCst);
                let left = pages.read(0, 64 * PAGE);
                writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
                ensure!(pages.read(0, 64 * PAGE) == left, "changed after deregistration");
                Ok(())
            })?;
        }
        Ok(())
    });
}

/// A window is as direct as its region until it is closed; then its key is refused, though others use the region.
#[test]
fn windows_closed_under_traffic() {
    in_direct_world(|| {
        for kind in [v::IBV_MW_TYPE_1, v::IBV_MW_TYPE_2] {
            let pair = Pair::new(&Options::default())?;
            let region = Mr::alloc(&pair.far.pd, 4 * PAGE, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
            let local = pair.near.region(4 * PAGE)?;
            let window = Window::new(&pair.far.pd, kind)?;
            window.open(&pair.far, part(&region, 0, 2 * PAGE, v::IBV_ACCESS_REMOTE_WRITE))?;
            let at = window.at(&region, 0);
            let (is_closed, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
            let before = counter("direct_requests")?;
            std::thread::scope(|scope| -> Result<()> {
                let writer = scope.spawn(|| -> Result<()> {
                    let mut written = 0;
                    loop {
                        let late = is_closed.load(Ordering::SeqCst);
                        let wc = pair.near.complete(&SendWr::new(Op::Write(at), &[local.sge(0, 2 * PAGE)]))?;
                        written += 1;
                        has_begun.store(written > 200, Ordering::SeqCst);
                        if wc.status != Status::SUCCESS {
                            ensure!(wc.status == Status::REM_ACCESS_ERR, "{wc:?}");
                            return Ok(());
                        }
                        ensure!(!late, "written through a closed window");
                    }
                });
                while !has_begun.load(Ordering::SeqCst) && !writer.is_finished() {
                    std::thread::yield_now();
                }
                // Freeing it closes it.
                drop(window);
                is_closed.store(true, Ordering::SeqCst);
                writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
            })?;
            ensure!(counter("direct_requests")? > before, "nothing went through the window by itself");
        }
        Ok(())
    });
}

/// A window is within reach as long as its region is: the memory of one that is not shared is not, though another registration shares
/// it just now, and may end before the window.
#[test]
fn windows_of_regions_that_are_not_shared() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let pages = Pages::new(12 * PAGE);
        let first = Mr::of(&pair.far.pd, &pages, 0, 8 * PAGE, ALL_ACCESS)?;
        ensure!(is_direct(&pair, &first)?);
        // It overlaps the first, and is not within it.
        let second = Mr::of(&pair.far.pd, &pages, 4 * PAGE, 8 * PAGE, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
        let window = Window::new(&pair.far.pd, v::IBV_MW_TYPE_1)?;
        let rights = v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_READ;
        window.open(&pair.far, part(&second, 0, 4 * PAGE, rights))?;
        let local = pair.near.region(PAGE)?;
        local.pages().write(0, &pattern(1, PAGE));
        let before = counter("direct_requests")?;
        succeeds(&pair.near, Op::Write(window.at(&second, 0)), &[local.sge(0, PAGE)])?;
        ensure!(counter("direct_requests")? == before, "it is shown");
        ensure!(pages.read(4 * PAGE, PAGE) == pattern(1, PAGE));
        first.dereg()?;
        // What the first one had in the shared file is another's by now.
        let others = Pages::new(8 * PAGE);
        let other = Mr::of(&pair.far.pd, &others, 0, 8 * PAGE, ALL_ACCESS)?;
        ensure!(is_direct(&pair, &other)?);
        local.pages().write(0, &pattern(2, PAGE));
        succeeds(&pair.near, Op::Write(window.at(&second, 0)), &[local.sge(0, PAGE)])?;
        ensure!(pages.read(4 * PAGE, PAGE) == pattern(2, PAGE) && others.read(0, 8 * PAGE) == vec![0; 8 * PAGE]);
        drop(window);
        second.dereg()?;
        Ok(())
    });
}

/// Protected memory is reached all the same; unmapped memory takes nobody's process down, and memory that is mapped there since is
/// not touched when the region goes.
#[test]
fn protected_unmapped_and_mapped_anew() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let pages = Pages::new(4 * PAGE);
        let memory = Mr::of(&pair.far.pd, &pages, 0, 4 * PAGE, ALL_ACCESS)?;
        let local = pair.near.region(4 * PAGE)?;
        ensure!(is_direct(&pair, &memory)?);
        local.pages().write(0, &pattern(7, 4 * PAGE));
        pages.protect(libc::PROT_NONE);
        succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, 4 * PAGE)])?;
        pages.protect(libc::PROT_READ | libc::PROT_WRITE);
        ensure!(pages.read(0, 4 * PAGE) == pattern(7, 4 * PAGE));
        pages.unmap_from(2 * PAGE);
        let wc = pair.near.complete(&SendWr::new(Op::Write(memory.at(0)), &[local.sge(0, 4 * PAGE)]))?;
        ensure!(wc.status == Status::SUCCESS || wc.status == Status::REM_OP_ERR, "{wc:?}");
        let tail = std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(pages.addr())? + 2 * PAGE);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
        // SAFETY: where nothing is mapped.
        let anew = unsafe { libc::mmap(tail.cast(), PAGE, protection, flags, -1, 0) };
        ensure!(anew == tail.cast());
        // SAFETY: the page of above.
        unsafe { tail.write(123) };
        memory.dereg()?;
        // SAFETY: as above.
        ensure!(unsafe { tail.read() } == 123, "memory of somebody else was replaced");
        ensure!(pages.read(0, 2 * PAGE) == pattern(7, 4 * PAGE)[..2 * PAGE]);
        Ok(())
    });
}

/// A forked child sees memory as it was, and its writes are its own; the parent's device works on.
#[test]
fn a_forked_child() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let pages = Pages::new(16 * PAGE);
        let memory = Mr::of(&pair.far.pd, &pages, 0, 16 * PAGE, ALL_ACCESS)?;
        ensure!(is_direct(&pair, &memory)?);
        let local = pair.near.region(16 * PAGE)?;
        local.pages().write(0, &pattern(5, 16 * PAGE));
        succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, 16 * PAGE)])?;
        let far = &pages;
        let mut child = Child::fork(|parent| {
            parent.receive::<1>()?;
            ensure!(far.read(0, 16 * PAGE) == pattern(5, 16 * PAGE), "the child sees the parent's later WRITEs");
            far.write(0, &[1; PAGE]);
            parent.send(&[0])
        })?;
        local.pages().write(0, &pattern(6, 16 * PAGE));
        succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, 16 * PAGE)])?;
        child.send(&[0])?;
        child.receive::<1>()?;
        child.finish()?;
        ensure!(pages.read(0, 16 * PAGE) == pattern(6, 16 * PAGE), "the child's writes are seen");
        ensure!(is_direct(&pair, &memory)?);
        Ok(())
    });
}

/// Many registrations, one after the other and at once, leave nothing behind.
#[test]
fn registrations_come_and_go() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let local = pair.near.region(PAGE)?;
        let pages = Pages::new(64 * PAGE);
        let other = Pd::new(&pair.far.context)?;
        for round in 0..200_u64 {
            let bytes = pattern(round, PAGE);
            pages.write(0, &bytes);
            let all: Vec<_> = (0..64)
                .step_by(4)
                .map(|page| Mr::of(&pair.far.pd, &pages, page * PAGE, 4 * PAGE, ALL_ACCESS))
                .collect::<Result<_, _>>()?;
            let twice = Mr::of(&other, &pages, 0, PAGE, ALL_ACCESS)?;
            succeeds(&pair.near, Op::Read(all[0].at(0)), &[local.sge(0, PAGE)])?;
            ensure!(local.pages().read(0, PAGE) == bytes, "round {round}");
            succeeds(&pair.near, Op::Write(all[15].at(0)), &[local.sge(0, PAGE)])?;
            drop(all);
            drop(twice);
            ensure!(pages.read(60 * PAGE, PAGE) == bytes && pages.read(0, PAGE) == bytes, "round {round}");
        }
        Ok(())
    });
}

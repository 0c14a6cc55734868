//! Mappings of registered memory that the application changes: both ways, without packets and by packets, reach the pages that were
//! registered, as a card does.

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, Pages, pattern};
use urxe_tests::verbs::window::part;
use urxe_tests::verbs::{Mr, Op, Options, Pair, RecvWr, SendWr, Status, Window};

use super::memory::is_direct;
use super::{in_direct_world, succeeds};

const LEN: usize = 4 * PAGE;

/// Two ends, and direct memory of the far one.
struct Scene {
    pair: Pair,
    pages: std::sync::Arc<Pages>,
    memory: Mr,
    local: Mr,
}

impl Scene {
    fn new() -> Result<Self> {
        let pair = Pair::new(&Options::default())?;
        let pages = Pages::new(LEN);
        let memory = Mr::of(&pair.far.pd, &pages, 0, LEN, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
        let local = pair.near.region(LEN)?;
        ensure!(is_direct(&pair, &memory)?);
        Ok(Self { pair, pages, memory, local })
    }

    fn request(&self, op: Op, seed: u64) -> Result<()> {
        self.local.pages().write(0, &pattern(seed, LEN));
        succeeds(&self.pair.near, op, &[self.local.sge(0, LEN)])?;
        Ok(())
    }

    /// A SEND into the memory, which goes by packets as it has two buffers there.
    fn send(&self, seed: u64) -> Result<()> {
        let far = &self.pair.far;
        far.qp.post_recv(&RecvWr::new(0, &[self.memory.sge(0, 8), self.memory.sge(8, LEN - 8)]))?;
        self.request(Op::Send, seed)?;
        let wc = far.recv_cq.next()?;
        ensure!(wc.status == Status::SUCCESS, "the receive: {wc:?}");
        Ok(())
    }

    /// A WRITE with immediate data, which goes by packets.
    fn write_with_immediate(&self, seed: u64) -> Result<()> {
        let far = &self.pair.far;
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        self.request(Op::WriteImm(self.memory.at(0), 1), seed)?;
        ensure!(far.recv_cq.next()?.status == Status::SUCCESS);
        Ok(())
    }

    /// A SEND from the memory, which goes by packets as it has two buffers where it goes.
    fn send_back(&self) -> Result<Vec<u8>> {
        self.pair.near.qp.post_recv(&RecvWr::new(0, &[self.local.sge(0, 8), self.local.sge(8, LEN - 8)]))?;
        succeeds(&self.pair.far, Op::Send, &[self.memory.sge(0, LEN)])?;
        ensure!(self.pair.near.recv_cq.next()?.status == Status::SUCCESS);
        Ok(self.local.pages().read(0, LEN))
    }

    /// Both ways in and out reach one memory.
    fn both_ways_agree(&self) -> Result<()> {
        self.request(Op::Write(self.memory.at(0)), 1)?;
        ensure!(self.send_back()? == pattern(1, LEN), "by packets from what was written without");
        self.send(2)?;
        self.request(Op::Read(self.memory.at(0)), 0)?;
        ensure!(self.local.pages().read(0, LEN) == pattern(2, LEN), "read without packets from what came by them");
        self.write_with_immediate(3)?;
        ensure!(self.send_back()? == pattern(3, LEN), "by packets in both directions");
        Ok(())
    }

    fn start(&self) -> Result<*mut libc::c_void> {
        Ok(std::ptr::with_exposed_provenance_mut(usize::try_from(self.pages.addr())?))
    }
}

/// Protected memory of all kinds of protection, and atomics there, which go by packets while another request is outstanding.
#[test]
fn protected() {
    in_direct_world(|| {
        let scene = Scene::new()?;
        for protection in [libc::PROT_NONE, libc::PROT_READ, libc::PROT_READ | libc::PROT_EXEC] {
            scene.pages.protect(protection);
            scene.both_ways_agree()?;
            scene.pages.protect(libc::PROT_READ | libc::PROT_WRITE);
            ensure!(scene.pages.read(0, LEN) == pattern(3, LEN), "protection {protection}");
        }
        let Pair { near, far } = &scene.pair;
        scene.pages.write(0, &[0; 8]);
        scene.pages.protect(libc::PROT_NONE);
        let add = SendWr::new(Op::FetchAdd { remote: scene.memory.at(0), add: 1 }, &[scene.local.sge(0, 8)]);
        for _ in 0..100 {
            far.qp.post_recv(&RecvWr::new(0, &[]))?;
            // What comes behind a SEND goes by packets.
            near.qp.post_sends(&[SendWr::new(Op::Send, &[]), add.clone()])?;
            let all = near.send_cq.take(2)?;
            ensure!(all.iter().all(|wc| wc.status == Status::SUCCESS), "{all:?}");
            succeeds(near, add.op, &add.sges)?;
        }
        scene.pages.protect(libc::PROT_READ | libc::PROT_WRITE);
        ensure!(scene.pages.read_u64(0) == 200);
        // The result of an atomic, too, goes into protected memory.
        scene.local.pages().write(0, &[0xff; 8]);
        scene.local.pages().protect(libc::PROT_READ);
        succeeds(near, add.op, &add.sges)?;
        ensure!(scene.local.pages().read_u64(0) == 200);
        Ok(())
    });
}

/// A part of a message goes to what is protected, and it is a window of the memory.
#[test]
fn protected_in_part_and_by_a_window() {
    in_direct_world(|| {
        let scene = Scene::new()?;
        let far = &scene.pair.far;
        let window = Window::new(&far.pd, v::IBV_MW_TYPE_1)?;
        window.open(far, part(&scene.memory, PAGE, 3 * PAGE, v::IBV_ACCESS_REMOTE_WRITE))?;
        scene.pages.protect_from(2 * PAGE, libc::PROT_READ);
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        scene.local.pages().write(0, &pattern(4, LEN));
        let to = window.at(&scene.memory, PAGE + 5);
        succeeds(&scene.pair.near, Op::WriteImm(to, 1), &[scene.local.sge(0, 2 * PAGE)])?;
        ensure!(scene.pages.read(PAGE + 5, 2 * PAGE) == pattern(4, LEN)[..2 * PAGE]);
        Ok(())
    });
}

/// Unmapped memory stays the registration's: peers read what they wrote. Nothing that is mapped there since is touched when the
/// registration ends.
#[test]
fn unmapped() {
    in_direct_world(|| {
        let scene = Scene::new()?;
        scene.pages.unmap();
        scene.both_ways_agree()?;
        // SAFETY: where nothing is mapped.
        let other = unsafe {
            libc::mmap(
                scene.start()?,
                LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        ensure!(other == scene.start()?);
        scene.request(Op::Write(scene.memory.at(0)), 5)?;
        scene.memory.dereg()?;
        // SAFETY: the mapping of above, which is aligned.
        let first = unsafe { other.cast::<u64>().read() };
        ensure!(first == 0, "somebody else's memory: {first:#x}");
        // SAFETY: as above, for the last time.
        unsafe { libc::munmap(other, LEN) };
        Ok(())
    });
}

/// Memory that mremap(2) has moved is reached by the address that was registered, and the application finds it at the new one.
#[test]
fn moved() {
    in_direct_world(|| {
        let scene = Scene::new()?;
        // SAFETY: the pages of this scene, which go anywhere.
        let there = unsafe { libc::mremap(scene.start()?, LEN, LEN, libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP) };
        let there = if there == libc::MAP_FAILED {
            // Kernels before 5.13 leave nothing behind of shared pages only.
            let place = Pages::new(LEN);
            place.unmap();
            let to = std::ptr::with_exposed_provenance_mut::<libc::c_void>(usize::try_from(place.addr())?);
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: as above, to where nothing is.
            unsafe { libc::mremap(scene.start()?, LEN, LEN, flags, to) }
        } else {
            scene.pages.unmap();
            there
        };
        ensure!(there != libc::MAP_FAILED);
        scene.both_ways_agree()?;
        // SAFETY: the pages of this scene.
        let found = unsafe { std::slice::from_raw_parts(there.cast::<u8>(), LEN) }.to_vec();
        ensure!(found == pattern(3, LEN), "the application's bytes");
        scene.memory.dereg()?;
        // SAFETY: as above: it is the application's to look after.
        let found = unsafe { std::slice::from_raw_parts(there.cast::<u8>(), LEN) }.to_vec();
        ensure!(found == pattern(3, LEN), "after deregistration");
        // SAFETY: for the last time.
        unsafe { libc::munmap(there, LEN) };
        Ok(())
    });
}

/// `MADV_DONTNEED` leaves the bytes of shared pages alone: the application and its peers go on with one memory.
#[test]
fn not_needed() {
    in_direct_world(|| {
        let scene = Scene::new()?;
        scene.request(Op::Write(scene.memory.at(0)), 6)?;
        // SAFETY: the pages of this scene.
        ensure!(unsafe { libc::madvise(scene.start()?, LEN, libc::MADV_DONTNEED) } == 0);
        ensure!(scene.pages.read(0, LEN) == pattern(6, LEN), "what a peer wrote before");
        scene.both_ways_agree()?;
        ensure!(scene.pages.read(0, LEN) == pattern(3, LEN), "what peers wrote since");
        scene.memory.dereg()?;
        ensure!(scene.pages.read(0, LEN) == pattern(3, LEN), "after deregistration");
        Ok(())
    });
}

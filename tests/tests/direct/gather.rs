//! Lists of several buffers (`sg_list`) at both ends.

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::{PAGE, pattern};
use urxe_tests::verbs::{Mr, Op, Options, Pair, RecvWr, SendWr, Status};
use urxe_tests::{own_counter as counter, wait_until};

use crate::memory::is_direct;
use crate::{in_direct_world, succeeds};

const LEN: usize = 16 * PAGE;

/// Offsets and lengths of four buffers: within a page, of no bytes, of one byte, and across pages. They are in no order.
const PARTS: [(usize, usize); 4] = [(5000, 100), (9, 0), (4095, 1), (2 * PAGE - 7, 3 * PAGE)];
/// Bytes of all of them.
const TOTAL: usize = 101 + 3 * PAGE;

/// Two ends; the near one has two regions, so that buffers of a list have different keys.
struct Scene {
    pair: Pair,
    local: [Mr; 2],
    memory: Mr,
}

impl Scene {
    fn new() -> Result<Self> {
        let pair = Pair::new(&Options::default())?;
        let local = [pair.near.region(LEN)?, pair.near.region(LEN)?];
        let memory = pair.far.region(LEN)?;
        ensure!(is_direct(&pair, &memory)?);
        Ok(Self { pair, local, memory })
    }

    /// Buffers of the near end, in its regions by turns.
    fn list(&self) -> Vec<v::ibv_sge> {
        let regions = self.local.iter().cycle();
        PARTS.iter().zip(regions).map(|((offset, length), region)| region.sge(*offset, *length)).collect()
    }

    /// Bytes of the buffers of [`list`](Self::list), one behind the other.
    fn gathered(&self) -> Vec<u8> {
        let regions = self.local.iter().cycle();
        PARTS.iter().zip(regions).flat_map(|((offset, length), region)| region.pages().read(*offset, *length)).collect()
    }

    fn fill(&self, seed: u64) {
        self.local.iter().zip(seed..).for_each(|(region, seed)| region.pages().write(0, &pattern(seed, LEN)));
    }

    /// Requests that went without packets, and packets, while `act` acts.
    fn counted(&self, act: impl FnOnce() -> Result<()>) -> Result<(u64, u64)> {
        let before = (counter("direct_requests")?, counter("tx_packets")?);
        act()?;
        Ok((counter("direct_requests")? - before.0, counter("tx_packets")? - before.1))
    }
}

#[test]
fn several_buffers_are_written_as_one() {
    in_direct_world(|| {
        let scene = Scene::new()?;
        for (seed, offset) in (2..).zip([0, 3, PAGE]) {
            scene.fill(seed);
            scene.memory.pages().write(0, &[7; LEN]);
            let request = || succeeds(&scene.pair.near, Op::Write(scene.memory.at(offset)), &scene.list()).map(drop);
            // An ACK of before may be on its way.
            wait_until("one request without packets", || Ok(scene.counted(request)? == (1, 0)))?;
            ensure!(scene.memory.pages().read(offset, TOTAL) == scene.gathered(), "to {offset}");
            let around = [(0, offset), (offset + TOTAL, LEN - offset - TOTAL)];
            let is_left = |(at, length)| scene.memory.pages().read(at, length).iter().all(|byte| *byte == 7);
            ensure!(around.into_iter().all(is_left), "bytes around are others");
        }
        Ok(())
    });
}

#[test]
fn several_buffers_are_read_into() {
    in_direct_world(|| {
        let scene = Scene::new()?;
        for (seed, offset) in (2..).zip([0, 3, PAGE]) {
            scene.local.iter().for_each(|region| region.pages().write(0, &[7; LEN]));
            scene.memory.pages().write(0, &pattern(seed, LEN));
            let request = || succeeds(&scene.pair.near, Op::Read(scene.memory.at(offset)), &scene.list()).map(drop);
            // An ACK of before may be on its way.
            wait_until("one request without packets", || Ok(scene.counted(request)? == (1, 0)))?;
            ensure!(scene.gathered() == pattern(seed, LEN)[offset..offset + TOTAL], "from {offset}");
            // Each region has some of the buffers, and nothing besides.
            for (nth, region) in scene.local.iter().enumerate() {
                let of_it = PARTS.iter().skip(nth).step_by(2);
                let mut bytes = region.pages().read(0, LEN);
                of_it.for_each(|(offset, length)| bytes[*offset..offset + length].fill(7));
                ensure!(bytes == [7; LEN], "bytes around are others");
            }
        }
        Ok(())
    });
}

/// Several buffers that are sent go without packets into one, and by packets into several.
#[test]
fn several_buffers_are_sent() {
    in_direct_world(|| {
        let scene = Scene::new()?;
        let Pair { near, far } = &scene.pair;
        let whole = vec![scene.memory.sge(100, TOTAL)];
        // Three buffers as long as the message together, with bytes between them.
        let three = vec![scene.memory.sge(100, 50), scene.memory.sge(151, 1), scene.memory.sge(PAGE + 1, TOTAL - 51)];
        let places = [vec![(100, TOTAL)], vec![(100, 50), (151, 1), (PAGE + 1, TOTAL - 51)]];
        for seed in 2..6 {
            for ((buffers, places), is_direct) in [&whole, &three].into_iter().zip(&places).zip([true, false]) {
                scene.fill(seed);
                scene.memory.pages().write(0, &[7; LEN]);
                let send = || {
                    far.qp.post_recv(&RecvWr::new(seed, buffers))?;
                    succeeds(near, Op::Send, &scene.list())?;
                    let wc = far.recv_cq.next()?;
                    ensure!(
                        (wc.status, wc.wr_id) == (Status::SUCCESS, seed) && wc.byte_len as usize == TOTAL,
                        "{wc:?}"
                    );
                    Ok(())
                };
                if is_direct {
                    // The one before went by packets.
                    wait_until("a SEND without packets", || Ok(scene.counted(send)? == (1, 0)))?;
                } else {
                    ensure!(scene.counted(send)?.0 == 0);
                }
                let pages = scene.memory.pages();
                let received: Vec<u8> = places.iter().flat_map(|(at, length)| pages.read(*at, *length)).collect();
                ensure!(received == scene.gathered(), "direct: {is_direct}");
                let mut bytes = pages.read(0, LEN);
                places.iter().for_each(|(at, length)| bytes[*at..at + length].fill(7));
                ensure!(bytes == [7; LEN], "bytes around are others: direct: {is_direct}");
            }
        }
        Ok(())
    });
}

/// A list of which one buffer may not be accessed fails as a whole, wherever that buffer is in the list.
#[test]
fn lists_with_a_wrong_buffer() {
    in_direct_world(|| {
        for wrong in 0..3 {
            for make in [|scene: &Scene| Op::Write(scene.memory.at(0)), |scene: &Scene| Op::Read(scene.memory.at(0))] {
                let scene = Scene::new()?;
                scene.memory.pages().write(0, &[7; LEN]);
                let mut list =
                    vec![scene.local[0].sge(0, 100), scene.local[1].sge(0, 100), scene.local[0].sge(200, 100)];
                // It ends behind its region.
                list[wrong] = scene.local[wrong % 2].sge(LEN - 50, 100);
                let op = make(&scene);
                let wc = scene.pair.near.complete(&SendWr::new(op, &list))?;
                ensure!(wc.status == Status::LOC_PROT_ERR, "{op:?} with buffer {wrong} wrong: {wc:?}");
                let behind = scene.memory.pages().read(300, LEN - 300);
                ensure!(behind.iter().all(|byte| *byte == 7), "bytes behind the message are others");
            }
        }
        Ok(())
    });
}
